"""/ready: readiness for requests, for load balancers and orchestrators."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Response

from wellread.server import schemas
from wellread.server.engine import Engine
from wellread.server.responses import json_response


def add_ready_route(app: FastAPI, engine: Engine) -> None:
    """Add the route; unlike /health it is also 503 while the server stops or its queue is full."""
    why = "send requests to another server: this one stops, its queue is full, or `problems` names what is wrong"
    failing: dict[int | str, dict[str, Any]] = {503: {"model": schemas.Ready, "description": why}}

    @app.get("/ready", response_model=schemas.Ready, responses=failing, tags=["server"])
    async def ready() -> Response:
        """Return whether requests can be sent to this server now."""
        problems = await engine.run_info(lambda: engine.problems)
        if engine.stopping.is_set():
            problems = [*problems, "the server is stopping"]
        elif engine.batcher.waiting >= engine.queue:
            problems = [*problems, "the queue is full"]
        headers = {"cache-control": "no-store"} | ({"retry-after": "5"} if problems else {})
        return json_response({"ready": not problems, "problems": problems}, 503 if problems else 200, headers)
