"""/docs: Swagger UI for /openapi.json; its files come from the installed package fastapi-offline, not from a CDN."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from wellread.errors import MissingExtraError, install_extra

_OWN = {"docs.js": "text/javascript"}
_SWAGGER = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


@cache
def _swagger_folder() -> Path:
    """Return the folder of Swagger UI's files; the code of the package is not imported."""
    found = find_spec("fastapi_offline")
    folders = [Path(place) / "static" for place in (found.submodule_search_locations or ())] if found else []
    folder = next((one for one in folders if all((one / name).is_file() for name in _SWAGGER)), None)
    if folder is None:
        raise MissingExtraError(f"/docs needs fastapi-offline; {install_extra('serve')}; /openapi.json works without")
    return folder


def add_docs_routes(app: FastAPI) -> None:
    """Add the page and its files; both are cached by browsers until they change."""
    here = files("wellread.server").joinpath("docs")
    page = here.joinpath("docs.html").read_bytes()
    own = {name: here.joinpath(name).read_bytes() for name in _OWN}

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        _swagger_folder()
        return HTMLResponse(page, headers={"cache-control": "no-cache"})

    @app.get("/docs/{name}", include_in_schema=False)
    def part(name: str) -> Response:
        if name in own:
            return Response(own[name], media_type=_OWN[name], headers={"cache-control": "no-cache"})
        if name not in _SWAGGER:
            raise HTTPException(404, "unknown file of the API's documentation")
        content = (_swagger_folder() / name).read_bytes()
        return Response(content, media_type=_SWAGGER[name], headers={"cache-control": "max-age=86400"})
