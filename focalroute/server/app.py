"""The HTTP side: who asks, what, and how it is told. Everything about answers is the ensemble's.

POST /v1/chat/completions    POST /v1/feedback    GET /v1/models[/{model}]    GET /healthz    GET /metrics
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from focalroute.core.errors import FocalrouteError, PoolError
from focalroute.core.receipts import Answer
from focalroute.server.callers import Caller, Callers
from focalroute.server.metrics import CONTENT_TYPE, Metrics
from focalroute.server.refusals import Refusal, Refused, refusal_of
from focalroute.server.replies import Chunks, completion, completion_id
from focalroute.server.requests import MODEL, Asked, parse_json, read_chat, read_feedback
from focalroute.serving.ensemble import AsyncEnsemble
from focalroute.serving.streaming import AsyncAnswerStream

#: Of a request's body; a larger one is refused, and not read to its end.
MAX_BODY_BYTES = 16 * 2**20

_BODY_S = 30.0  # within which it has to arrive
_PIECE_S = 60.0  # within which a client has to take a piece of a stream
_MOST_ASKS = 1000  # under way at a time; beyond that they are refused
_BUSY = Refusal(503, "too many requests are under way; try again", "server_error", code="busy", retry_after_s=1)
_CLOSING = Refusal(503, "the server is shutting down", "server_error", code="closing", retry_after_s=1)
_BROKEN = Refusal(500, "the server failed; its log says where", "server_error", code="internal_error")
_GONE = 499  # the client went away; nobody gets to see it
_LOCAL = {"localhost", "127.0.0.1", "::1"}

_log = logging.getLogger("focalroute.server")

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def application(ensemble: AsyncEnsemble, callers: Callers | None, *, local_only: bool) -> Starlette:
    """See `focalroute.server.create_app`."""
    return _Service(ensemble, callers, local_only=local_only).app()


class _Service:
    def __init__(self, ensemble: AsyncEnsemble, callers: Callers | None, *, local_only: bool) -> None:
        self._ensemble = ensemble
        self._callers = callers
        self._local_only = local_only
        self._metrics = Metrics()
        self._created = int(time.time())

    def app(self) -> Starlette:
        routes = [
            self._route("/v1/chat/completions", self._chat, "POST"),
            self._route("/v1/feedback", self._feedback, "POST"),
            self._route("/v1/models", self._models),
            self._route("/v1/models/{model:path}", self._model),
            self._route("/metrics", self._measured),
            self._route("/healthz", self._healthy, open_to_all=True),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._no_such}, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._ensemble.aclose()

    # -- around every request ----------------------------------------------------------------------------------------

    def _route(self, path: str, handler: Handler, method: str = "GET", *, open_to_all: bool = False) -> Route:
        """The handler for those who may ask, as long as there is an ensemble; what it raises is told as OpenAI does."""

        async def guarded(request: Request) -> Response:
            try:
                if self._ensemble.closed:
                    raise Refused(_CLOSING)
                if not open_to_all:
                    request.state.caller = self._admit(request)
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=_GONE)
            except Exception as error:  # noqa: BLE001 - the caller gets it in words
                response = _told(_refusal(error))
            self._metrics.request(path, response.status_code)
            return response

        return Route(path, guarded, methods=[method])

    def _admit(self, request: Request) -> Caller | None:
        """Who asks; None: nobody needs a key.

        Raises:
            Refused: no right key; or a page in a browser asks, which may not spend its visitor's money.
        """
        if self._local_only and _host(request) not in _LOCAL:
            raise Refused(Refusal(403, "without keys only this machine is served, by its own name", code="not_local"))
        if self._callers is None:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        caller = self._callers.find(key.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            said = "no such key" if key else 'give a key, in the header "Authorization: Bearer KEY"'
            headers = {"WWW-Authenticate": "Bearer"}
            raise Refused(Refusal(401, said, "authentication_error", code="invalid_api_key", headers=headers))
        return caller

    async def _no_such(self, _: Request, error: Exception) -> Response:
        """A path or a method that does not exist."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        message = "no such method here" if status == 405 else "no such path; see /v1/models"
        self._metrics.request("other", status)
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return _told(Refusal(status, message, code="not_found", headers=headers))

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        if self._metrics.under_way >= _MOST_ASKS:
            raise Refused(_BUSY)
        caller: Caller | None = request.state.caller
        tags = None if self._callers is None or caller is None else (caller.tag, *caller.tags)
        asked = read_chat(parse_json(await _body(request)), tags)
        name = "" if caller is None else caller.name
        began = time.perf_counter()
        self._metrics.begin()
        try:
            if asked.stream:
                return await self._streamed(request, asked, name, began)
            answer = await _unless_gone(request.receive, self._ensemble.ask(asked.query, **asked.options))
        except BaseException as error:
            self._ended(began, error=error)
            raise
        self._ended(began, answer, name)
        return _json(completion(asked, answer), headers={"x-request-id": completion_id(answer.id)})

    async def _streamed(self, request: Request, asked: Asked, name: str, began: float) -> Response:
        """A response once the first piece is there: what fails before has a status of its own."""
        stream = self._ensemble.stream(asked.query, **asked.options)
        try:
            first = await _unless_gone(request.receive, stream.next_piece())
        except BaseException:
            await stream.aclose()
            raise
        return _Speech(asked, stream, first, lambda answer, error: self._ended(began, answer, name, error))

    def _ended(
        self, began: float, answer: Answer | None = None, name: str = "", error: BaseException | None = None
    ) -> None:
        self._metrics.end(time.perf_counter() - began)
        if answer is not None:
            self._metrics.receipt(answer.receipt, name)
        elif isinstance(error, PoolError):
            self._metrics.failed(error.replies)

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def _feedback(self, request: Request) -> Response:
        told = read_feedback(parse_json(await _body(request)))
        await self._ensemble.feedback(told.answer_id, reward=told.reward, label=told.label, source=told.source)
        return _json({"object": "feedback", "id": completion_id(told.answer_id), "source": told.source})

    async def _models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._served()]})

    async def _model(self, request: Request) -> Response:
        if request.path_params["model"] != MODEL:
            raise Refused(Refusal(404, f"model: there is only {MODEL!r} here", param="model", code="model_not_found"))
        return _json(self._served())

    def _served(self) -> dict[str, Any]:
        return {"id": MODEL, "object": "model", "created": self._created, "owned_by": "focalroute"}

    async def _measured(self, _: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _healthy(self, _: Request) -> Response:
        return _json({"status": "ok"})


class _Speech(Response):
    """An answer as server-sent events, until it ends or the client goes away.

    Args:
        first: its first piece; None: it has no text.
        ended: called once, with the answer if it came to its end, and what went wrong if anything did.
    """

    def __init__(
        self,
        asked: Asked,
        stream: AsyncAnswerStream,
        first: str | None,
        ended: Callable[[Answer | None, BaseException | None], None],
    ) -> None:
        name = completion_id(stream.id)
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-cache", "x-request-id": name})
        del self.headers["content-length"]
        self._asked = asked
        self._stream = stream
        self._first = first
        self._ended = ended
        self._chunks = Chunks(asked, name, int(time.time()))
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            with contextlib.suppress(ClientDisconnect, OSError):  # a client that takes nothing more is gone, too
                await _unless_gone(receive, self._send(send))
        finally:
            self._ended(self._answer, self._error)
            await self._stream.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events()) as events:
            async for event in events:
                async with asyncio.timeout(_PIECE_S):
                    await _part(send, f"data: {event}\n\n".encode())
        await _part(send, b"", more=False)

    async def _events(self) -> AsyncGenerator[str]:
        try:
            yield self._chunks.role()
            piece = self._first
            while piece is not None:
                yield self._chunks.piece(self._asked.said(piece))
                piece = await self._stream.next_piece()
            self._answer = self._stream.answer
            for event in self._chunks.end(self._answer):
                yield event
            yield "[DONE]"
        except Exception as error:  # noqa: BLE001 - the caller gets it in words
            self._error = error
            yield json.dumps(_refusal(error).body)


async def _part(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _body(request: Request) -> bytes:
    """The whole body.

    Raises:
        Refused: it is not JSON by its own word, is too large, or does not arrive.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which a page of another site cannot send without being asked
        raise Refused(Refusal(415, "send the header Content-Type: application/json", code="unsupported_media_type"))
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    message = f"the body is larger than {MAX_BODY_BYTES} bytes"
                    raise Refused(Refusal(413, message, code="body_too_large", headers={"Connection": "close"}))
                parts.append(part)
    except TimeoutError:
        raise Refused(Refusal(408, "the body did not arrive in time", headers={"Connection": "close"})) from None
    return b"".join(parts)


async def _unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What the work gives; it is cancelled once the client is gone.

    Raises:
        ClientDisconnect: the client is gone.
    """
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([doing, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(error: BaseException) -> Refusal:
    if isinstance(error, Refused):
        return error.refusal
    if isinstance(error, FocalrouteError):
        return refusal_of(error)
    where = "".join(traceback.format_tb(error.__traceback__))  # and no message: it may hold text of a prompt
    _log.error("a request failed with %s\n%s", type(error).__name__, where)
    return _BROKEN


def _told(refusal: Refusal) -> Response:
    return _json(refusal.body, refusal.status, refusal.all_headers)


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON in ASCII, which any text can be written in."""
    return Response(json.dumps(body, default=str), status, headers, media_type="application/json")


def _host(request: Request) -> str:
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return ""
