"""The host of `attsvm play`: four files and one WebSocket on 127.0.0.1.

During a drag the page waits for each answer, then sends the newest position. Here a newer message replaces a waiting
one. It also ends the one being computed, except a draft, which is nearly done.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from attsvm.playground.frontend import PAGE_HTML, host_script, module, style

ADDRESS = "127.0.0.1"
PORT = 8377
# A page of another site may open a WebSocket to this machine, but cannot forge its Origin.
LOCAL_NAMES = ("127.0.0.1", "localhost")
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'"
_TOO_LARGE = 1 << 20


def application(announce: Callable[[], None] = lambda: None) -> Starlette:
    """Return the ASGI application.

    Parameters
    ----------
    announce : callable
        Called once connections are accepted.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # Compiling and importing torch take seconds, once; an early page waits for them, Ctrl-C does not.
        threading.Thread(target=warm_up, daemon=True).start()
        announce()
        yield

    routes = [
        Route("/", _file("text/html", lambda: PAGE_HTML)),
        Route("/playground.js", _file("text/javascript", module)),
        Route("/host.js", _file("text/javascript", host_script)),
        Route("/playground.css", _file("text/css", style)),
        WebSocketRoute("/model", _converse),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def warm_up() -> None:
    """Compute one picture, so that everything is imported and compiled before the first drag."""
    from attsvm.playground.picture import answer
    from attsvm.playground.plane import PageMemory
    from attsvm.playground.presets import PRESETS

    first = next(iter(PRESETS.values()))["state"]
    answer({"seq": 0, "draft": True, "state": first}, PageMemory())


def is_local(headers: Headers) -> bool:
    """Whether a request names this machine and, if it comes from a page, comes from a page of this server."""
    host = headers.get("host", "")
    origin = headers.get("origin")
    # Browsers omit port 80, in both headers.
    return host.partition(":")[0] in LOCAL_NAMES and origin in (None, f"http://{host}")


def _file(kind: str, content: Callable[[], str]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        if not is_local(request.headers):
            return Response("This page is for this machine only.", status_code=403, media_type="text/plain")
        headers = {"content-security-policy": _POLICY, "cache-control": "no-store", "x-content-type-options": "nosniff"}
        return Response(content(), media_type=kind, headers=headers)

    return respond


async def _converse(socket: WebSocket) -> None:
    """Answer the newest message of one page repeatedly, until the page closes."""
    from attsvm.playground.picture import answer
    from attsvm.playground.plane import PageMemory, Supersession

    if not is_local(socket.headers):
        await socket.close(code=1008)
        return
    await socket.accept()
    newest: list[Any] = []  # one message at most
    arrival = asyncio.Event()

    async def listen() -> None:
        while True:
            frame = await socket.receive()
            if frame["type"] == "websocket.disconnect":
                return
            newest[:] = [_decode(frame.get("text"))]
            arrival.set()

    async def compute() -> None:
        memory = PageMemory()
        while True:
            await arrival.wait()
            arrival.clear()
            message = newest.pop()
            try:
                picture = await asyncio.to_thread(answer, message, memory, lambda: bool(newest))
            except Supersession:
                continue
            await socket.send_text(json.dumps(picture, allow_nan=False))

    tasks = [asyncio.create_task(listen()), asyncio.create_task(compute())]
    try:
        completions, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in completions:
            task.result()
    except WebSocketDisconnect:
        return
    finally:
        newest[:] = [None]  # ends a training whose picture is no longer needed
        for task in tasks:
            task.cancel()


def _decode(text: str | None) -> Any:
    """Return the JSON, or None, which is answered as an invalid state; a binary frame has no text."""
    try:
        return None if text is None or len(text) > _TOO_LARGE else json.loads(text)
    except (ValueError, RecursionError):
        return None


def serve(port: int, announce: Callable[[], None] = lambda: None) -> None:
    """Serve the page on 127.0.0.1 until interrupted.

    Parameters
    ----------
    port : int
    announce : callable
        Called once pages can be requested.

    Raises
    ------
    OSError
        If the port is taken.
    """
    import socket

    import uvicorn

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        config = uvicorn.Config(
            application(announce), log_level="error", ws="websockets-sansio", lifespan="on", access_log=False,
            timeout_graceful_shutdown=1, ws_max_size=_TOO_LARGE,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listener])
