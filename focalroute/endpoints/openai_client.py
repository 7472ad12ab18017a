"""A ready ``AsyncOpenAI`` in place of our own transport, and what both ways share.

Only bytes cross this seam: the library's own readings of them differ between its versions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure
from focalroute.core.services import is_within
from focalroute.endpoints.wire import MAX_REPLY_BYTES, CapField
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import refusal_of
from focalroute.endpoints.wire.stream import StreamDecoder

#: Takes the raw headers of a response.
OnHeaders = Callable[[Iterable[tuple[bytes, bytes]]], None]

#: What is called at a service.
CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"
#: An error is read no further than this, nor is what is looked up.
MAX_ERROR_BYTES = 64 * 1024
_UNPACKED = {"Accept-Encoding": "identity"}  # so that what is read is as long as what is sent
_OPENAI_HOSTS = ("openai.com", "azure.com")
#: What httpx and httpx2 raise before anything is sent.
_UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"}


def cap_field(base_url: str) -> CapField:
    """Return the service's name for the most tokens of a reply."""
    host = urlsplit(base_url).hostname or ""
    return "max_completion_tokens" if is_within(host, _OPENAI_HOSTS) else "max_tokens"


def private_values(endpoint: Endpoint) -> tuple[str, ...]:
    """The values of the headers that the user gave; they may be keys, so that no message may quote them."""
    return tuple(value.removeprefix("Bearer ") for value in endpoint.headers.values())


async def read_all(response: Any, limit: int) -> bytearray:
    """The body of an httpx (or httpx2) response, not unpacked; CallFailed if it is too long, or breaks off.

    Not by `pieces_of`, as a generator takes longer than to read a usual reply.
    """
    body = bytearray()
    failed: list[CallFailed] = []
    try:
        if response.is_stream_consumed:  # by a hook, or before it was sent, as mocks are
            body += response.content
        else:
            async for piece in response.stream:
                body += piece
                if len(body) > limit:
                    break
    except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
        failed.append(_cut(error))
    if failed:  # raised here, it has no context; popped, no frame of its traceback holds it
        raise failed.pop()
    if len(body) > limit:
        raise protocol_error("the reply is too long")
    return body


async def pieces_of(response: Any) -> AsyncGenerator[bytes, None]:
    """The body of an httpx (or httpx2) response as it comes, not unpacked; CallFailed if it breaks off."""
    failed: list[CallFailed] = []
    try:
        if response.is_stream_consumed:  # by a hook, or before it was sent, as mocks are
            yield response.content
            return
        async for piece in response.stream:
            if piece:
                yield piece
    except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
        failed.append(_cut(error))
    if failed:  # raised here, it has no context
        raise failed.pop()


def unsent(error: BaseException) -> CallFailed:
    """The failure of a request without a response, by what httpx or httpx2 raised: their names are the same."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if "TransportError" not in names:
        hint = "check the HTTP client that you gave: is it closed, or does a hook of it raise?"
        return CallFailed(Failure("protocol", f"the client failed ({type(error).__name__})", hint=hint))
    if "TimeoutException" in names and not names & _UNSENT:
        return CallFailed(Failure("timeout", "no whole reply within the client's own time limit"))
    if "ProxyError" in names:
        hint = "check the proxy that is set, by proxy or by the environment's http_proxy and https_proxy"
        failure = Failure("connection", f"could not get through the proxy ({_innermost(error)})", hint=hint)
        return CallFailed(failure, free=True)
    if "ProtocolError" in names and "disconnected" not in str(error):
        hint = "check base_url: what answers there speaks no HTTP; is it https instead of http, or another port?"
        return CallFailed(Failure("connection", f"what came back is not HTTP ({_innermost(error)})", hint=hint))
    failure = Failure("connection", f"could not reach the service ({_innermost(error)})")
    return CallFailed(failure, free=bool(names & _UNSENT))


def _innermost(error: BaseException) -> str:
    """Return the root cause, such as a name that was not found or an untrusted certificate."""
    for _ in range(8):
        error = error.__cause__ or error.__context__ or error
    return type(error).__name__


class OpenAITransport:
    """A ready ``AsyncOpenAI`` (1.83 or newer), without its own retries. Only bytes cross this seam, piece by piece.

    Nor does it follow redirects for us: with some versions it would take an Azure key along, and always the prompt.
    """

    def __init__(self, endpoint: Endpoint, on_headers: OnHeaders | None) -> None:
        from openai import AsyncStream  # with much code, for which no call's time limit shall pay

        self._client = endpoint.client
        self._on_headers = on_headers
        self._headers = {**endpoint.headers, **_UNPACKED}
        self._private = private_values(endpoint)
        self._unread = AsyncStream[object]
        self.cap = cap_field(str(self._client.base_url))

    async def read(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytearray:
        """The body of the reply; ``body`` None: nothing is sent, and `MAX_ERROR_BYTES` at the most are got."""
        reply = await self._send(path, body, headers)
        try:
            return await read_all(reply.response, MAX_ERROR_BYTES if body is None else MAX_REPLY_BYTES)
        finally:
            await reply.close()

    async def stream(
        self, body: Mapping[str, Any], headers: Mapping[str, str], decoder: StreamDecoder
    ) -> AsyncGenerator[str, None]:
        """The pieces of text of a streamed reply."""
        reply = await self._send(CHAT, body, headers)
        try:
            async with contextlib.aclosing(pieces_of(reply.response)) as chunks:
                async for chunk in chunks:
                    yield decoder.feed(chunk)
                    if decoder.done:
                        return
        finally:
            await reply.close()

    async def _send(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Any:
        """The reply, whose body is not read yet; ``body`` None: nothing is sent, it is got."""
        send = self._client.get if body is None else partial(self._client.post, body=dict(body))
        options = {"headers": {**self._headers, **headers}, "max_retries": 0, "follow_redirects": False}
        failed: list[CallFailed] = []
        try:
            reply = await send(path, cast_to=object, options=options, stream=True, stream_cls=self._unread)
        except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
            failed.append(_translated(error, self.secrets(body)))
            if self._on_headers is not None and (refused := getattr(error, "response", None)) is not None:
                self._on_headers(refused.headers.raw)
        if failed:  # raised here, it has no context: the library's own exceptions quote what came back
            raise failed.pop()
        if self._on_headers is not None:
            self._on_headers(reply.response.headers.raw)
        return reply

    def secrets(self, body: Mapping[str, Any] | None) -> tuple[str, ...]:
        """The request, and the key: texts of which nothing may be told."""
        return (json.dumps(body, default=str), str(self._client.api_key), *self._private)


def _cut(error: Exception) -> CallFailed:
    """The failure of a reply that broke off; httpx and httpx2 have the same names for a timeout of their own."""
    if "Timeout" in type(error).__name__:
        return CallFailed(Failure("timeout", "no whole reply within the client's own time limit"))
    return protocol_error(f"the reply was cut short ({type(error).__name__})")


def _translated(error: Exception, secrets: Sequence[str]) -> CallFailed:
    """The openai library's exceptions as our failures."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return CallFailed(refusal_of(error.status_code, error.response.headers, error.body, secrets))
    if isinstance(error, openai.APIConnectionError) and error.__cause__ is not None:
        return unsent(error.__cause__)
    return protocol_error(f"no chat completion came back ({type(error).__name__})")
