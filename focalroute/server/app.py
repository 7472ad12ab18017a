"""The HTTP side of the server: routes, callers, bodies and streams. The ensemble makes the answers.

POST /v1/chat/completions    POST /v1/feedback    GET /v1/models[/{model}]    GET /healthz    GET /metrics
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from focalroute.core.errors import BudgetExceeded, ConfigError, FeedbackError, FocalrouteError, PoolError
from focalroute.core.receipts import Answer
from focalroute.core.services import is_loopback
from focalroute.endpoints.rate_limits import Rolling
from focalroute.money.budget import ASKED, AskBudget
from focalroute.server.callers import Caller, Callers
from focalroute.server.metrics import CONTENT_TYPE, Metrics
from focalroute.serving.ensemble import AsyncEnsemble
from focalroute.serving.openai_api import completion_id
from focalroute.serving.openai_api.refusals import Refused, internal_error, is_own, public_refusal_of
from focalroute.serving.openai_api.replies import DONE, completion, events, feedback_taken, model, model_list
from focalroute.serving.openai_api.requests import ChatRequest, parse_json, read_chat, read_feedback
from focalroute.serving.query import new_id
from focalroute.serving.streaming import AsyncAnswerStream

#: The largest body of a request; a larger one is refused unread if it declares its length, else without the rest.
MAX_BODY_BYTES = 16 * 2**20

_SMALL_BODY_BYTES = 64 * 1024  # up to this size a body is parsed on the event loop, in 2 ms at most
_MOST_BODY_BYTES = 256 * 2**20  # for all requests under way; parsing takes several times as much memory
_BODY_S = 30.0  # for a body to arrive
_PIECE_S = 60.0  # for a client to accept a piece of a stream
_MOST_ASKS = 1000  # under way at a time; more are refused
_GONE = 499  # the client disconnected; only seen in metrics
_CALLER_ERRORS = (ConfigError, FeedbackError)

_log = logging.getLogger("focalroute.server")

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Service:
    """The routes of one ensemble; see `focalroute.server.create_app`."""

    def __init__(self, ensemble: AsyncEnsemble, callers: Callers | None, *, local_only: bool) -> None:
        self._ensemble = ensemble
        self._callers = callers
        self._local_only = local_only
        self._metrics = Metrics()
        self._created = int(time.time())
        self._under_way: Counter[str] = Counter()  # asks, by the caller's name
        self._body_bytes = 0  # of all requests under way
        self._reader = ThreadPoolExecutor(1, "focalroute-body")
        self._rates: dict[tuple[str, str], Rolling] = {}  # requests in the last minute, by kind and caller

    def app(self) -> Starlette:
        """Make the application."""
        routes = [
            self._route("/v1/chat/completions", self._chat_completion, "POST"),
            self._route("/v1/feedback", self._feedback, "POST"),
            self._route("/v1/models", self._models),
            self._route("/v1/models/{model:path}", self._model),
            self._route("/metrics", self._metrics_text),
            self._route("/healthz", self._healthy, open_to_all=True),
        ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(self._counting_bodies)],
            exception_handlers={HTTPException: self._not_found},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False  # a redirect would name http even behind an https proxy
        return app

    def _counting_bodies(self, app: ASGIApp) -> ASGIApp:
        """Subtract a request's body from the bytes under way once its response is sent."""

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            state = scope.setdefault("state", {})
            try:
                await app(scope, receive, send)
            finally:
                self._body_bytes -= state.get("body_bytes", 0)

        return counting

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._ensemble.aclose()

    # -- around every request ----------------------------------------------------------------------------------------

    def _route(self, path: str, handler: Handler, method: str = "GET", *, open_to_all: bool = False) -> Route:
        """Make a route that admits callers while the ensemble is open, and turns errors into OpenAI's responses."""

        async def guarded(request: Request) -> Response:
            try:
                if self._ensemble.closed:
                    message = "the server is shutting down; try again"
                    raise Refused(503, message, "server_error", code="closing", retry_after_s=1)
                if not open_to_all:
                    request.state.caller = await self._admit(request)
                response = await handler(request)
            except ClientDisconnect:
                response = Response(status_code=_GONE)
            except Exception as error:  # noqa: BLE001 - the caller gets it as a response
                response = _error(_refusal(error))
            self._metrics.request(path, response.status_code)
            return response

        return Route(path, guarded, methods=[method])

    async def _admit(self, request: Request) -> Caller | None:
        """Find the caller; None: no key is needed.

        Raises:
            Refused: there is no valid key; or only local requests are served and the Host header names another host, as
                in a request that a web page makes by DNS rebinding.
        """
        if self._local_only and not is_loopback(_host(request)):
            message = "without keys only this machine is served; send to localhost, or start the server with --keys"
            raise Refused(403, message, code="not_local")
        if self._callers is None:
            return None
        if self._callers.changed():
            await asyncio.to_thread(self._callers.reload, self._ensemble)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        caller = self._callers.find(key) if key else None
        if caller is None:
            said = "no such key" if key else 'give a key, in the header "Authorization: Bearer KEY"'
            headers = {"WWW-Authenticate": "Bearer"}
            raise Refused(401, said, "authentication_error", code="invalid_api_key", extra_headers=headers)
        return caller

    async def _not_found(self, _: Request, error: Exception) -> Response:
        """Answer for a path or a method that does not exist."""
        known = cast("HTTPException", error)  # the only exception that it handles
        status, headers = known.status_code, dict(known.headers or {})
        if status == 405:
            message, code = f"no such method here; use {headers.get('Allow')}", "method_not_allowed"
        else:
            message = (
                "no such path: chat completions are served, not responses, completions or embeddings; use "
                "POST /v1/chat/completions (the base URL of a client ends in /v1)"
            )
            code = "not_found"
        self._metrics.request("other", status)
        return _error(Refused(status, message, code=code, extra_headers=headers))

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _chat_completion(self, request: Request) -> Response:
        """Answer POST /v1/chat/completions."""
        if self._metrics.under_way >= _MOST_ASKS:
            message = "too many requests are under way; try again"
            raise Refused(503, message, "server_error", code="busy", retry_after_s=1)
        caller: Caller | None = request.state.caller
        if caller is not None:
            self._check_limits(caller)
        tags = None if self._callers is None or caller is None else (caller.tag, *caller.tags)
        name = "" if caller is None else caller.name
        self._under_way[name] += 1
        try:
            chat = await self._read(request, lambda body: read_chat(body, tags))
        except BaseException:
            self._under_way[name] -= 1
            raise
        began, asked = time.perf_counter(), list[AskBudget]()
        self._metrics.begin()
        try:
            if chat.stream:
                return await self._streamed(request, chat, name, began, asked)
            asking = self._traced(request, lambda: self._ensemble.ask(chat.query, **chat.options), asked)
            answer = await _while_connected(request.receive, asking)
        except BaseException as error:
            self._ended(began, asked, name=name, error=error)
            raise
        self._ended(began, asked, answer, name)
        return _json(completion(chat, answer), headers={"x-request-id": completion_id(answer.id)})

    async def _read(self, request: Request, read: Callable[[object], T]) -> T:
        """Read a request's body. Large ones are parsed on a thread, one at a time, so that others are served meanwhile.

        Raises:
            Refused: the body, or a field, is invalid.
        """
        _check_headers(request)
        body = await self._body(request)
        if len(body) <= _SMALL_BODY_BYTES:
            return read(parse_json(body))
        return await asyncio.get_running_loop().run_in_executor(self._reader, lambda: read(parse_json(body)))

    async def _body(self, request: Request) -> bytes:
        """Receive the whole body.

        Raises:
            Refused: it is too large, does not arrive in time, or too many bytes of bodies are under way.
        """
        parts, size = [], 0
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in request.stream():
                    size += len(part)
                    if size > MAX_BODY_BYTES:
                        raise _too_large()
                    self._body_bytes += len(part)
                    request.state.body_bytes = size
                    if self._body_bytes > _MOST_BODY_BYTES:
                        message = "too many large requests are under way; try again"
                        headers = {"Connection": "close"}
                        raise Refused(503, message, "server_error", code="busy", retry_after_s=1, extra_headers=headers)
                    parts.append(part)
        except TimeoutError:
            raise Refused(408, "the body did not arrive in time", extra_headers={"Connection": "close"}) from None
        return b"".join(parts)

    def _check_limits(self, caller: Caller) -> None:
        """Check a caller's concurrency and rate, and count an ask against the rate.

        Raises:
            Refused: the caller has too many asks under way, or began too many within a minute.
        """
        if self._under_way[caller.name] >= caller.max_concurrency:
            message = f"this key has {caller.max_concurrency} requests under way, its maximum; try again"
            raise Refused(429, message, "rate_limit_error", code="too_many_under_way", retry_after_s=1)
        self._check_rate(caller, "asks")

    def _check_rate(self, caller: Caller, kind: str) -> None:
        """Count a caller's request of this kind against its rate; raise Refused if it is exceeded."""
        if caller.requests_per_minute is None:
            return
        rate, now = self._rates.setdefault((kind, caller.name), Rolling(0)), time.monotonic()
        rate.most = caller.requests_per_minute  # it may have changed in the file of keys
        wait_s = rate.earliest(1, now) - now
        if wait_s > 0:
            message = f"this key may make {caller.requests_per_minute} {kind} per minute; try again later"
            raise Refused(429, message, "rate_limit_error", code="too_many_requests", retry_after_s=wait_s)
        rate.use(1, now)

    async def _streamed(
        self, request: Request, chat: ChatRequest, name: str, began: float, asked: list[AskBudget]
    ) -> Response:
        """Return a streamed response once its first piece is there, so that an earlier error gets its own status."""
        stream = self._ensemble.stream(chat.query, **chat.options)
        try:
            first = await _while_connected(request.receive, self._traced(request, stream.next_piece, asked))
        except BaseException:
            await stream.aclose()
            raise
        return _EventStream(chat, stream, first, lambda answer, error: self._ended(began, asked, answer, name, error))

    async def _traced(self, request: Request, work: Callable[[], Awaitable[T]], asked: list[AskBudget]) -> T:
        """Run an ask as part of the trace in the request's headers.

        Call it in a task of its own, as the trace and ``asked`` stay set in the task's context.

        Args:
            asked: the ask's budget is appended to it.
        """
        self._ensemble.join_trace(request.headers)
        ASKED.set(asked)
        return await work()

    def _ended(
        self,
        began: float,
        asked: Sequence[AskBudget],
        answer: Answer | None = None,
        name: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Count an ask that ended: its duration, cost and calls."""
        self._under_way[name] -= 1
        self._metrics.end(time.perf_counter() - began)
        self._metrics.paid(sum((one.spent for one in asked), Decimal(0)), name)
        if isinstance(error, PoolError):
            self._metrics.called(error.replies)
        elif answer is not None and not answer.cached:  # a cached answer's calls were counted before
            self._metrics.called(answer.receipt.all_calls)

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def _feedback(self, request: Request) -> Response:
        if request.state.caller is not None:
            self._check_rate(request.state.caller, "feedbacks")
        feedback = await self._read(request, read_feedback)
        await self._ensemble.feedback(feedback.id, **feedback.said)
        return _json(feedback_taken(feedback))

    async def _models(self, _: Request) -> Response:
        return _json(model_list(self._created))

    async def _model(self, request: Request) -> Response:
        return _json(model(request.path_params["model"], self._created))

    async def _metrics_text(self, request: Request) -> Response:
        caller: Caller | None = request.state.caller
        if caller is not None and not caller.metrics:
            message = "this key may not read the server's metrics; its operator can give the key metrics = true"
            raise Refused(403, message, "permission_error", code="no_metrics")
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _healthy(self, _: Request) -> Response:
        self._ensemble.check_open()  # also raises if the ensemble was made before a fork
        return _json({"status": "ok"})


def _check_headers(request: Request) -> None:
    """Raise Refused unless the headers declare a body of uncompressed JSON that is not too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # other sites' pages cannot send this type without a CORS preflight
        raise Refused(415, "send the header Content-Type: application/json", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        message = "send the body as it is, without Content-Encoding"
        raise Refused(415, message, code="unsupported_content_encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _too_large()


def _too_large() -> Refused:
    message = f"the body is larger than {MAX_BODY_BYTES} bytes; send less"
    return Refused(413, message, code="body_too_large", extra_headers={"Connection": "close"})


class _EventStream(StreamingResponse):
    """Sends an answer as server-sent events, until it ends or the client disconnects.

    Args:
        first: the first piece; None: the answer has no text.
        on_end: called once, with the answer if it was completed, and the error if there was one.
    """

    def __init__(
        self,
        chat: ChatRequest,
        stream: AsyncAnswerStream,
        first: str | None,
        on_end: Callable[[Answer | None, BaseException | None], None],
    ) -> None:
        name = completion_id(stream.id)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "x-request-id": name}  # nginx would buffer
        self._lines = self._make_lines(chat, stream, first)
        super().__init__(self._lines, headers=headers, media_type="text/event-stream")
        self._stream = stream
        self._on_end = on_end
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the answer ends or the client disconnects."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(_PIECE_S):
                await send(message)

        try:
            with contextlib.suppress(ClientDisconnect, OSError):  # a client that stops reading counts as gone
                await _while_connected(receive, self.stream_response(send_in_time))
        finally:
            try:
                await self._lines.aclose()
                await self._stream.aclose()
            finally:
                self._on_end(self._answer, self._error)

    async def _make_lines(self, chat: ChatRequest, stream: AsyncAnswerStream, first: str | None) -> AsyncGenerator[str]:
        """Yield the lines of all events; remember the answer, or the error, for ``on_end``."""
        try:
            async for event in events(chat, stream, first):
                if event == DONE:
                    self._answer = stream.answer
                yield f"data: {event}\n\n"
        except Exception as error:  # noqa: BLE001 - the caller gets it as a response
            self._error = error
            yield f"data: {json.dumps(_refusal(error).body)}\n\n"


async def _while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of the work, which is cancelled if the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait([doing, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(error: BaseException) -> Refused:
    """Make the response to an error. Details that the caller may not see are logged under the response's id."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, FocalrouteError):
        request_id = completion_id(error.answer_id or new_id())
        refused = public_refusal_of(error)
        by_caller = is_own(error) if isinstance(error, BudgetExceeded) else isinstance(error, _CALLER_ERRORS)
        level = logging.INFO if by_caller and refused.status < 500 else logging.WARNING
        _log.log(level, "%s: %s: %s", request_id, type(error).__name__, error)
    else:
        request_id, refused = completion_id(new_id()), internal_error()
        where = "".join(traceback.format_tb(error.__traceback__))  # not the message, which may quote a prompt
        _log.error("%s: a request failed with %s\n%s", request_id, type(error).__name__, where)
    refused.extra_headers = {"x-request-id": request_id}
    return refused


def _error(refusal: Refused) -> Response:
    return _json(refusal.body, refusal.status, refusal.headers)


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Make a JSON response, in ASCII so that any text can be encoded."""
    return Response(json.dumps(body, default=str), status, headers, media_type="application/json")


def _host(request: Request) -> str:
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return ""
