"""Makes real OpenAI clients whose HTTP transport is an ensemble in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from focalroute.core.errors import EnsembleClosed, FocalrouteError
from focalroute.serving.openai_api import completion_id
from focalroute.serving.openai_api.refusals import Refused, refusal_of
from focalroute.serving.openai_api.replies import completion, events, feedback_taken, model, model_list
from focalroute.serving.openai_api.requests import parse_json, read_chat, read_feedback

if TYPE_CHECKING:
    import openai

    from focalroute.core.receipts import Answer
    from focalroute.serving.streaming import AsyncAnswerStream

_CLIENT: dict[str, Any] = {
    "base_url": "http://focalroute.invalid/v1",  # never looked up
    "api_key": "unused",
    "max_retries": 0,  # the ensemble has its own
}

T = TypeVar("T")


class EnsembleLike(Protocol):
    """The methods of an `AsyncEnsemble` that the clients call."""

    async def ask(self, *args: Any, **kwargs: Any) -> Answer:
        """Answer a query."""

    def stream(self, *args: Any, **kwargs: Any) -> AsyncAnswerStream:
        """Stream the answer to a query."""

    async def feedback(self, *args: Any, **kwargs: Any) -> object:
        """Take feedback."""


class Run(Protocol):
    """Runs a coroutine function where the ensemble lives, and waits for it."""

    def __call__(self, work: Callable[[], Awaitable[T]], /) -> T:
        """Run it."""


class RunAsync(Protocol):
    """Runs a coroutine function where the ensemble lives."""

    def __call__(self, work: Callable[[], Awaitable[T]], /) -> Awaitable[T]:
        """Run it."""


def openai_client(
    ensemble: EnsembleLike, run: Run, close: Callable[[Callable[[], Awaitable[None]]], None]
) -> openai.OpenAI:
    """Make a client for code without ``await``; ``close`` runs the closing of a stream, on any thread."""
    import openai

    httpx = _http_library()

    class _Stream(httpx.SyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, request: Any, body: AsyncGenerator[bytes]) -> None:
            self._request = request
            self._body = body

        def __iter__(self) -> Iterator[bytes]:
            try:
                while piece := run(partial(_in_time, httpx, self._request, partial(anext, self._body, b""))):
                    yield piece
            except EnsembleClosed as error:
                yield _error_event(error)

        def close(self) -> None:
            close(self._body.aclose)

    def respond(request: Any) -> Any:
        try:
            reply = run(partial(_in_time, httpx, request, partial(_reply, ensemble, request)))
        except EnsembleClosed as error:
            reply = _refusal(refusal_of(error))
        return _response(httpx, request, reply, _Stream)

    transport = httpx.MockTransport(respond)
    return openai.OpenAI(http_client=httpx.Client(transport=transport, trust_env=False), **_CLIENT)


def async_openai_client(ensemble: EnsembleLike, run: RunAsync) -> openai.AsyncOpenAI:
    """Make a client for code with ``await``."""
    import openai

    httpx = _http_library()

    class _Stream(httpx.AsyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, request: Any, body: AsyncGenerator[bytes]) -> None:
            self._request = request
            self._body = body

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                while piece := await run(partial(_in_time, httpx, self._request, partial(anext, self._body, b""))):
                    yield piece
            except EnsembleClosed as error:
                yield _error_event(error)

        async def aclose(self) -> None:
            with contextlib.suppress(EnsembleClosed):  # which closed the body, too
                await run(self._body.aclose)

    async def respond(request: Any) -> Any:
        try:
            reply = await run(partial(_in_time, httpx, request, partial(_reply, ensemble, request)))
        except EnsembleClosed as error:
            reply = _refusal(refusal_of(error))
        return _response(httpx, request, reply, _Stream)

    transport = httpx.MockTransport(respond)
    return openai.AsyncOpenAI(http_client=httpx.AsyncClient(transport=transport, trust_env=False), **_CLIENT)


def _http_library() -> Any:
    """Return the HTTP library of the installed openai: httpx, or httpx2 from 3.0 on."""
    import openai

    return import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes | AsyncGenerator[bytes]
    headers: dict[str, str] = field(default_factory=dict)


def _response(httpx: Any, request: Any, reply: _Reply, streamed: Callable[[Any, AsyncGenerator[bytes]], Any]) -> Any:
    stream = httpx.ByteStream(reply.body) if isinstance(reply.body, bytes) else streamed(request, reply.body)
    return httpx.Response(reply.status, headers=reply.headers, stream=stream)


async def _in_time(httpx: Any, request: Any, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the work, which is cancelled after the client's read timeout."""
    try:
        async with asyncio.timeout(request.extensions.get("timeout", {}).get("read")):
            return await work()
    except TimeoutError:
        raise httpx.ReadTimeout("no reply within the request's timeout", request=request) from None


async def _reply(ensemble: EnsembleLike, request: Any) -> _Reply:
    """Answer a request as `focalroute.server` does; its content has been read."""
    body = request.content
    try:
        match request.method, request.url.path:
            case "POST", "/v1/chat/completions":
                return await _chat_completion(ensemble, body)
            case "POST", "/v1/feedback":
                feedback = read_feedback(parse_json(body))
                await ensemble.feedback(feedback.id, **feedback.said)
                return _json(200, feedback_taken(feedback))
            case "GET", "/v1/models":
                return _json(200, model_list(int(time.time())))
            case "GET", path if path.startswith("/v1/models/"):
                return _json(200, model(path.removeprefix("/v1/models/"), int(time.time())))
        asked = f"{request.method} {request.url.path}"
        raise Refused(404, f"an ensemble answers chat completions, feedback and models, not {asked}", code="not_found")
    except FocalrouteError as error:
        return _refusal(refusal_of(error))
    except Refused as error:
        return _refusal(error)


def _refusal(refused: Refused) -> _Reply:
    return _json(refused.status, refused.body, **refused.headers)


async def _chat_completion(ensemble: EnsembleLike, body: bytes) -> _Reply:
    chat = read_chat(parse_json(body), None)
    if not chat.stream:
        answer = await ensemble.ask(chat.query, **chat.options)
        return _json(200, completion(chat, answer), **{"x-request-id": completion_id(answer.id)})
    stream = ensemble.stream(chat.query, **chat.options)
    try:
        first = await stream.next_piece()
    except BaseException:
        await stream.aclose()
        raise
    return _Reply(200, _lines(stream, events(chat, stream, first)), {"content-type": "text/event-stream"})


async def _lines(stream: AsyncAnswerStream, lines: AsyncIterator[str]) -> AsyncGenerator[bytes]:
    try:
        async for event in lines:
            yield f"data: {event}\n\n".encode()
    except FocalrouteError as error:
        yield _error_event(error)
    finally:
        await stream.aclose()


def _error_event(error: FocalrouteError) -> bytes:
    return f"data: {json.dumps(refusal_of(error).body)}\n\n".encode()


def _json(status: int, body: Any, **headers: str) -> _Reply:
    return _Reply(status, json.dumps(body, default=str).encode(), {"content-type": "application/json", **headers})
