"""Access to routes that change something, or that show texts of users: the token of `--token-file`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from wellread.server.settings import Settings

BEARER = HTTPBearer(auto_error=False, description="The token in the server's --token-file.")


def token_check(settings: Settings) -> Callable[[HTTPAuthorizationCredentials | None], Awaitable[None]]:
    """Return a dependency of routes that raises 403 on a read-only server, and 401 without the right token."""

    async def check_token(given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        token = settings.token
        if token is None:
            raise HTTPException(403, "the server is read-only; start it with --token-file to allow changes")
        sent = "" if given is None else given.credentials
        digests = [hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest() for one in (sent, token)]
        if not hmac.compare_digest(*digests):
            raise HTTPException(
                401,
                "the token is missing or wrong; send the header Authorization: Bearer TOKEN",
                {"www-authenticate": "Bearer"},
            )

    return check_token
