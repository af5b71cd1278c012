"""Sounds inside your own FastAPI application.

    pip install 'diffsound[serve]'
    uvicorn --app-dir examples fastapi_app:app
    curl 'http://127.0.0.1:8000/sound?prompt=a+dog+barks' -o dog.ogg

For a server with a queue, batching, limits and keys, run `diffsound serve` instead.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Lock
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response

import diffsound


@asynccontextmanager
async def loaded(app: FastAPI) -> AsyncIterator[None]:
    """Load the model once, when the application starts."""
    app.state.pipeline = diffsound.load(os.environ.get("BUNDLE"))
    app.state.one_at_a_time = Lock()
    yield


app = FastAPI(title="Sounds", lifespan=loaded)


# A plain function: FastAPI runs it in a thread, and the event loop stays free.
@app.get("/sound", response_class=Response, responses={200: {"content": {"audio/ogg": {}}}})
def sound(
    request: Request,
    prompt: Annotated[str, Query(max_length=200)],
    seconds: Annotated[float, Query(ge=0.5, le=10)] = 2.0,
    seed: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """An OGG file; the same query gives the same file."""
    try:
        with request.app.state.one_at_a_time:
            made = request.app.state.pipeline(prompt, duration=seconds, seed=seed)
    except diffsound.InputError as error:
        raise HTTPException(422, str(error)) from None
    return Response(made[0].encode("ogg"), media_type="audio/ogg")
