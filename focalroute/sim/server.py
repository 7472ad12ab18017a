"""The HTTP server of a simulated pool: every model in every dialect, in one process.

POST /{dialect}/v1/chat/completions    POST /{dialect}/v1/embeddings    GET /{dialect}/v1/models
GET  /sim/stats    POST /sim/model/{name}    POST /sim/reset
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hmac
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from aiohttp import web

from focalroute.core.errors import ConfigError
from focalroute.sim.compose import composed, embeddings
from focalroute.sim.dialects import DIALECTS, Dialect, RequestRefused
from focalroute.sim.faults import FIRST_ONLY, SPOILED, Fault, ServedModel
from focalroute.sim.models import SimulatedModel

_MAX_REQUEST = 16 * 2**20
_DRIP_PIECES = 20
_FLOOD_PIECE = 2**16
_JSON, _SSE, _TEXT, _HTML = "application/json", "text/event-stream", "text/plain", "text/html"

Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: The payloads of a reply, and whether it is streamed.
Payloads = tuple[list[Json], bool]
#: Bills a call and makes its reply.
MakeReply = Callable[[ServedModel, Json, Dialect, Fault | None], Payloads]


class PoolServer:
    """Serves a pool of simulated models.

    Args:
        models: the models to serve.
        keys: model name -> the bearer key it requires; other models accept any request.
    """

    def __init__(self, models: Sequence[SimulatedModel], keys: Mapping[str, str]) -> None:
        self._pool = tuple(models)
        self._dialects: Mapping[str, Dialect] = dict(
            chain(DIALECTS.items(), *(model.dialects.items() for model in models))
        )
        self._keys = dict(keys)
        self._restart()

    def _restart(self) -> None:
        self._served = {model.name: ServedModel(model) for model in self._pool}

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[int]:
        """Listen on 127.0.0.1 within the context; yields the port."""
        app = web.Application(client_max_size=_MAX_REQUEST, middlewares=[self._errors_as_json])
        app.add_routes([
            web.post("/{dialect}/v1/chat/completions", partial(self._call, make=_completion)),
            web.post("/{dialect}/v1/embeddings", partial(self._call, make=_embeddings)),
            web.get("/{dialect}/v1/models", self._models),
            web.get("/sim/stats", self._stats),
            web.post("/sim/model/{name}", self._switch),
            web.post("/sim/reset", self._reset),
        ])  # fmt: skip
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    # the services

    async def _call(self, request: web.Request, *, make: MakeReply) -> web.StreamResponse:
        dialect = self._dialect(request)
        body = _parsed(await request.read())
        served = self._find(body.get("model"), dialect)
        self._check_key(request, (served.model.name,))
        served.enter()
        try:
            return await _answer(request, lambda fault: make(served, body, dialect, fault), served, dialect)
        except (asyncio.CancelledError, ConnectionResetError):
            served.counts["cancelled"] += 1
            raise
        finally:
            served.under_way -= 1

    async def _models(self, request: web.Request) -> web.Response:
        dialect = self._dialect(request)
        self._check_key(request, tuple(self._served))
        return web.json_response(dialect.models([served.model for served in self._served.values()]))

    def _find(self, name: Any, dialect: Dialect) -> ServedModel:
        served = self._served.get(name) if isinstance(name, str) else None
        if served is None and dialect.any_model:
            return next(iter(self._served.values()))
        if served is None:
            raise RequestRefused(404, f"The model {name!r} does not exist.", "model_not_found")
        return served

    def _check_key(self, request: web.Request, names: Sequence[str]) -> None:
        """Refuse the request unless one of the models needs no key or accepts the request's."""
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        wanted = [self._keys.get(name) for name in names]
        if not any(key is None or hmac.compare_digest(key.encode(), sent) for key in wanted):
            raise RequestRefused(401, "Incorrect API key provided.", "invalid_api_key")

    @web.middleware
    async def _errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Send refusals as the dialect's errors, and errors of control requests as plain JSON."""
        try:
            return await handler(request)
        except (ConfigError, RequestRefused) as error:
            if isinstance(error, RequestRefused) and "dialect" in request.match_info:
                return _refusal(self._dialect(request), error)
            return _control_error(400, str(error))

    def _dialect(self, request: web.Request) -> Dialect:
        try:
            return self._dialects[request.match_info["dialect"]]
        except KeyError:
            raise web.HTTPNotFound(text=f"no such dialect; there are {', '.join(self._dialects)}") from None

    # the controls

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response({name: served.stats() for name, served in self._served.items()})

    async def _switch(self, request: web.Request) -> web.Response:
        served = self._served.get(request.match_info["name"])
        if served is None:
            return _control_error(
                404, f"model {request.match_info['name']!r}: not in the pool; it has {', '.join(self._served)}"
            )
        served.switch(_parsed(await request.read()))
        return web.json_response({})

    async def _reset(self, _: web.Request) -> web.Response:
        self._restart()
        return web.json_response({})


def _parsed(body: bytes) -> Json:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise RequestRefused(400, "We could not parse the body of your request: it is not a JSON object.")
    return parsed


def _refusal(dialect: Dialect, refused: RequestRefused) -> web.Response:
    body = dialect.error(refused.status, str(refused), refused.kind) if refused.body is None else refused.body
    return web.json_response(body, status=refused.status)


def _control_error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def _completion(served: ServedModel, body: Json, dialect: Dialect, fault: Fault | None) -> Payloads:
    composer = composed(served, body, dialect, fault)
    return (list(composer.chunks()), True) if composer.request.stream else ([composer.whole()], False)


def _embeddings(served: ServedModel, body: Json, _: Dialect, fault: Fault | None) -> Payloads:
    payload = embeddings(body, served.model.name)
    served.bill(payload["usage"]["prompt_tokens"], 0, fault)
    return [payload], False


async def _answer(
    request: web.Request, make: Callable[[Fault | None], Payloads], served: ServedModel, dialect: Dialect
) -> web.StreamResponse:
    """Serve one call to one model: draw its fault, bill it and reply. Faults of a completion's fields skip embeddings.

    Args:
        make: bills the call and makes the reply.
    """
    fault = served.strike()
    if fault is not None and fault.kind in _REPLACING:
        if fault.bills:
            make(fault)
        return await _REPLACING[fault.kind](request, fault, dialect)
    payloads, streamed = make(fault)
    if fault is not None and fault.kind == "hang":
        return await _hang(request, fault)
    delay = served.delay_s()
    if delay:
        await asyncio.sleep(delay / 2 if streamed else delay)
    texts = [_spoiled(payload, fault, i) for i, payload in enumerate(payloads)]
    if not streamed:
        return await _send(request, texts, _type(fault, _JSON), fault)
    events = [dialect.preamble, *(f"data: {text}\n\n" for text in (*texts, "[DONE]"))]
    return await _send(request, list(filter(None, events)), _type(fault, _SSE), fault, delay / 2)


def _spoiled(payload: Json, fault: Fault | None, index: int) -> str:
    if fault is None or fault.kind not in SPOILED or (fault.kind in FIRST_ONLY and index):
        return json.dumps(payload)
    return SPOILED[fault.kind](payload, fault)


def _type(fault: Fault | None, usual: str) -> str:
    return {"wrong_content_type": _TEXT}.get(fault.kind, usual) if fault else usual


async def _send(
    request: web.Request, pieces: Sequence[str], content_type: str, fault: Fault | None, spread_s: float = 0.0
) -> web.StreamResponse:
    """Send the pieces, spread over ``spread_s`` seconds, or as the fault demands."""
    kind = fault.kind if fault else None
    if kind not in ("drip", "cut", "short") and not spread_s:
        return web.Response(body="".join(pieces).encode(), headers={"Content-Type": content_type})
    whole = "".join(pieces).encode()
    response = web.StreamResponse(headers={"Content-Type": content_type})
    if kind != "short" and content_type == _JSON:
        response.content_length = len(whole)
    await response.prepare(request)
    if kind == "cut" or kind == "short":
        await response.write(whole[: len(whole) // 2] if content_type == _JSON else _first_half(pieces))
        if kind == "cut":
            _close(request)
        return response
    parts = [piece.encode() for piece in pieces]
    if fault is not None:
        size = -(-len(whole) // _DRIP_PIECES)
        parts, spread_s = [whole[i : i + size] for i in range(0, len(whole), size)], fault.seconds
    for part in parts:
        await response.write(part)
        await asyncio.sleep(spread_s / len(parts))
    return response


def _first_half(pieces: Sequence[str]) -> bytes:
    return "".join(pieces[: len(pieces) // 2]).encode()


def _close(request: web.Request, *, reset: bool = False) -> None:
    """Close the connection during the handler; ``reset``: with RST instead of FIN."""
    transport = request.transport
    if transport is None:
        return
    if reset:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()


async def _hang(request: web.Request, fault: Fault) -> web.StreamResponse:
    await asyncio.sleep(fault.seconds)
    _close(request)
    return web.Response()


async def _status(_: web.Request, fault: Fault, dialect: Dialect) -> web.StreamResponse:
    kind = "rate_limit_exceeded" if fault.status == 429 else "server_error"
    response = _refusal(dialect, RequestRefused(fault.status, f"A simulated failure with status {fault.status}.", kind))
    if fault.retry_after_s is not None:
        response.headers["Retry-After"] = f"{fault.retry_after_s:g}"
    return response


async def _reset_connection(request: web.Request, _: Fault, __: Dialect) -> web.StreamResponse:
    _close(request, reset=True)
    return web.Response()


async def _redirect(_: web.Request, fault: Fault, __: Dialect) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": fault.location})


async def _html(_: web.Request, fault: Fault, __: Dialect) -> web.StreamResponse:
    return web.Response(text=SPOILED["html"]({}, fault), content_type=_HTML)


async def _flood(request: web.Request, fault: Fault, _: Dialect) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": _JSON})
    await response.prepare(request)
    for left in range(fault.size, 0, -_FLOOD_PIECE):
        await response.write(b" " * min(left, _FLOOD_PIECE))
    return response


async def _bomb(_: web.Request, fault: Fault, __: Dialect) -> web.StreamResponse:
    body = gzip.compress(b" " * fault.size)
    return web.Response(body=body, headers={"Content-Type": _JSON, "Content-Encoding": "gzip"})


#: The faults that replace the answer.
_REPLACING: Mapping[str, Callable[[web.Request, Fault, Dialect], Awaitable[web.StreamResponse]]] = {
    "status": _status,
    "reset": _reset_connection,
    "redirect": _redirect,
    "html": _html,
    "flood": _flood,
    "bomb": _bomb,
}
