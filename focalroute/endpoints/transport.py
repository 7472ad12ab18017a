"""The interface for sending requests to one endpoint, and its implementation over the user's own ``AsyncOpenAI``.

The size of replies is bounded, and every failure is a `CallFailed`. `focalroute.endpoints.http` has the implementation
without the openai library. Only bytes are taken from that library, as its parsing differs between versions.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import to_json

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.network import innermost, untrusted
from focalroute.core.records import Failure
from focalroute.core.services import service_within
from focalroute.endpoints.wire import MAX_REPLY_BYTES, CapField
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import PROXY_LOGIN, refusal_of
from focalroute.endpoints.wire.stream import StreamDecoder

#: Receives the raw headers of a response.
OnHeaders = Callable[[Iterable[tuple[bytes, bytes]]], None]

#: Paths below a service's base_url.
CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"
#: Most bytes read of an error or of a lookup.
MAX_ERROR_BYTES = 64 * 1024
_UNCOMPRESSED = {"Accept-Encoding": "identity"}  # as bodies are read raw
#: Exceptions of httpx and httpx2 raised before any of the request was sent, and before all of it was.
_UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"}
_NOT_ALL_SENT = {*_UNSENT, "WriteError"}


async def read_all(response: Any, limit: int) -> bytearray:
    """Return the raw body of an httpx (or httpx2) response; CallFailed if it is too long or breaks off.

    It does not use `_pieces_of`: a generator costs more time than reading a usual reply.
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
        failed.append(_reply_failure(error))
    if failed:  # raised outside `except`, so that it has no context; popped, so that this frame does not keep it
        raise failed.pop()
    if len(body) > limit:
        raise protocol_error("the reply is too long")
    return body


async def _pieces_of(response: Any) -> AsyncGenerator[bytes, None]:
    """Yield the body of an httpx (or httpx2) response as it arrives; CallFailed if it breaks off."""
    failed: list[CallFailed] = []
    try:
        if response.is_stream_consumed:  # by a hook, or before it was sent, as mocks are
            yield response.content
            return
        async for piece in response.stream:
            if piece:
                yield piece
    except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
        failed.append(_reply_failure(error))
    if failed:  # as in `read_all`
        raise failed.pop()


def request_failure(error: BaseException) -> CallFailed:
    """Convert the HTTP client's exception for a request without a response.

    Exceptions are told apart by their names, which httpx and httpx2 share.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if "TransportError" not in names:
        hint = "check the HTTP client that you gave: is it closed, or does a hook of it raise?"
        return CallFailed(Failure("protocol", f"the client failed ({type(error).__name__})", hint=hint))
    if "TimeoutException" in names and not names & _UNSENT:
        return CallFailed(Failure("timeout", "no whole reply within the client's own time limit"))
    root = innermost(error)
    cause = type(root).__name__
    if "ProxyError" in names:
        status = getattr(root, "status", None)  # aiohttp's: what the proxy answered
        hint = "check the proxy that is set, by proxy or by the environment's http_proxy and https_proxy"
        if isinstance(status, int):
            cause, hint = f"HTTP {status}", PROXY_LOGIN if status == 407 else hint
        failure = Failure("connection", f"could not get through the proxy ({cause})", hint=hint)
        return CallFailed(failure, free=True)
    if "ProtocolError" in names and "disconnected" not in str(error):
        hint = "check base_url: what answers there does not speak HTTP; is it https instead of http, or another port?"
        return CallFailed(Failure("connection", f"what came back is not HTTP ({cause})", hint=hint))
    message, hint = "could not reach the service", ""
    if isinstance(root, ssl.SSLCertVerificationError):
        cause, hint = untrusted(
            root,
            authority="set verify, or SSL_CERT_FILE, to a file of the authority that signed the service's certificate",
            name="call the service in base_url by a name that is in its certificate",
        )
    elif isinstance(root, ssl.SSLError):
        hint = "check base_url: TLS failed there; is it http instead of https, or another port?"
    elif not names & _UNSENT:
        message = "the service ended the connection without a reply"
        hint = "try again; if it always does, see its log: over https it may require a client certificate (cert)"
    failure = Failure("connection", f"{message} ({cause})", hint=hint)
    return CallFailed(failure, free=bool(names & _NOT_ALL_SENT))


class Transport(ABC):
    """Sends requests to one endpoint. A subclass opens the responses, which have the interface of httpx's.

    Args:
        base_url: the service's.
        key: returns the API key. Messages must not quote it, nor the user's headers, which may hold keys.
        on_headers: called with the headers of every response.

    Attributes:
        cap: the service's name for the token limit of a reply.
    """

    def __init__(self, endpoint: Endpoint, base_url: str, key: Callable[[], str], on_headers: OnHeaders) -> None:
        of_openai = service_within(urlsplit(base_url).hostname or "") == "openai"
        self.cap: CapField = "max_completion_tokens" if of_openai else "max_tokens"
        self._key = key
        self._private = [value.removeprefix("Bearer ") for value in endpoint.headers.values()]
        self._on_headers = on_headers

    async def read(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytearray:
        """Return the reply's body. Without a ``body`` the request is a GET, whose reply may have `MAX_ERROR_BYTES`."""
        response = await self._open(path, body, headers)
        try:
            return await read_all(response, MAX_ERROR_BYTES if body is None else MAX_REPLY_BYTES)
        finally:
            await response.aclose()

    async def stream(
        self, body: Mapping[str, Any], headers: Mapping[str, str], decoder: StreamDecoder
    ) -> AsyncGenerator[str, None]:
        """Yield the text of a streamed reply in pieces, as they arrive."""
        response = await self._open(CHAT, body, headers)
        try:
            async with contextlib.aclosing(_pieces_of(response)) as chunks:
                async for chunk in chunks:
                    yield decoder.feed(chunk)
                    if decoder.done:
                        await self._drain(chunks)
                        return
        finally:
            await response.aclose()

    def secrets(self, body: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Return the texts that no message may quote: the request and the keys."""
        try:
            sent = to_json(body).decode()  # much faster than json
        except ValueError:  # a lone surrogate
            sent = json.dumps(body, default=str)
        return (sent, self._key(), *self._private)

    @abstractmethod
    async def _open(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Any:
        """Return the response, its body still unread; CallFailed if its status is not 2xx, as for a redirect."""

    async def _drain(self, chunks: AsyncIterator[bytes]) -> None:  # noqa: B027 - the user's client needs none
        """Read what follows the end of a stream, so that its connection can be reused."""


class OpenAITransport(Transport):
    """Sends requests through the user's ``AsyncOpenAI`` (1.83 or newer), without its retries and redirects.

    The target of a redirect would get the prompt and, with some versions, an Azure key.
    """

    def __init__(self, endpoint: Endpoint, on_headers: OnHeaders) -> None:
        from openai import AsyncStream  # slow to import, so it is not left to a call with a time limit

        self._client = endpoint.client
        super().__init__(endpoint, str(self._client.base_url), lambda: str(self._client.api_key), on_headers)
        self._headers = {**endpoint.headers, **_UNCOMPRESSED}
        self._stream_cls = AsyncStream[object]

    async def _open(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Any:
        send = self._client.get if body is None else partial(self._client.post, body=dict(body))
        options = {"headers": {**self._headers, **headers}, "max_retries": 0, "follow_redirects": False}
        failed: list[CallFailed] = []
        try:
            # As a stream, even for a whole reply: so the library does not read the body.
            reply = await send(path, cast_to=object, options=options, stream=True, stream_cls=self._stream_cls)
        except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
            failed.append(_translated(error, self.secrets(body)))
            if (refused := getattr(error, "response", None)) is not None:
                self._on_headers(refused.headers.raw)
        if failed:  # raised outside `except`, so that it has no context: the library's exceptions quote the reply
            raise failed.pop()
        self._on_headers(reply.response.headers.raw)
        return reply.response


def _reply_failure(error: Exception) -> CallFailed:
    """Convert the HTTP client's exception for a reply that broke off (see `request_failure`)."""
    if "Timeout" in type(error).__name__:
        return CallFailed(Failure("timeout", "no whole reply within the client's own time limit"))
    return protocol_error(f"the reply was cut short ({type(error).__name__})")


def _translated(error: Exception, secrets: Sequence[str]) -> CallFailed:
    """Convert an exception of the openai library."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return CallFailed(refusal_of(error.status_code, error.response.headers, error.body, secrets))
    if isinstance(error, openai.APIConnectionError) and error.__cause__ is not None:
        return request_failure(error.__cause__)
    return protocol_error(f"no chat completion came back ({type(error).__name__})")
