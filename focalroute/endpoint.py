"""One endpoint: single attempts at a call, over our own HTTP transport or a ready ``AsyncOpenAI``. Never retries.

HTTP is httpx's requests and responses over its aiohttp transport (httpx-aiohttp), called directly: what httpx's client
adds on top (redirects, cookies, authentication flows) is not wanted here. `docs/performance.md` compares the choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from focalroute.config import Endpoint
from focalroute.errors import CallFailed, ConfigError
from focalroute.records import Failure, Usage
from focalroute.wire import (
    MAX_REPLY_BYTES,
    CapField,
    Completion,
    Request,
    StreamDecoder,
    broken,
    decode_bytes,
    encode,
    refusal,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["EndpointClient", "HttpClients"]

_MAX_CONNECTIONS = 1000
_MAX_ERROR_BYTES = 64 * 1024
_CONNECT = {"connect": 10.0}  # seconds; all else is bounded by `EndpointClient.complete`
_KEEPALIVE_S = 30.0
_REMOTE = ("together", "deepinfra", "openrouter")
_DRAIN_S = 0.05
_OPENAI_HOSTS = ("openai.com", "azure.com")

#: The fields of ours that the openai library takes by name; all others reach the body through its ``extra_body``.
_BY_NAME = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "n", "logprobs", "top_logprobs"}
_BY_NAME |= {"response_format", "stream", "stream_options"}
_UNPACKED = {"Accept-Encoding": "identity"}  # so that what is read is as long as what is sent


#: Takes the raw headers of a response.
Heed = Callable[[Iterable[tuple[bytes, bytes]]], None]


class HttpClients:
    """One HTTP transport for each running event loop (and proxy), its connections kept alive, for all endpoints."""

    def __init__(self) -> None:
        self._open: dict[_Place, tuple[AsyncGenerator[httpx.AsyncBaseTransport, None], httpx.AsyncBaseTransport]] = {}

    async def transport(self, proxy: str | None) -> httpx.AsyncBaseTransport:
        """The running loop's transport, made on first use. It closes with the loop, or with `aclose`."""
        place = (asyncio.get_running_loop(), proxy)
        found = self._open.get(place)
        if found is None:
            for other in [other for other in list(self._open) if other[0].is_closed()]:
                self._open.pop(other, None)
            living = _living(proxy)
            found = self._open[place] = living, await anext(living)
        return found[1]

    async def aclose(self) -> None:
        """Close the running loop's transports and their connections. Idempotent."""
        loop = asyncio.get_running_loop()
        for place in [place for place in list(self._open) if place[0] is loop]:
            living, _ = self._open.pop(place)
            await living.aclose()


_Place = tuple[asyncio.AbstractEventLoop, "str | None"]


async def _living(proxy: str | None) -> AsyncGenerator[httpx.AsyncBaseTransport, None]:
    """A transport that lives as long as its loop: asyncio closes the async generators of a loop that ends."""
    import httpx
    from httpx_aiohttp import AiohttpTransport

    limits = httpx.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=_KEEPALIVE_S)
    transport = AiohttpTransport(limits=limits, proxy=httpx.Proxy(proxy) if proxy else None)
    try:
        yield transport
    finally:
        await transport.aclose()


class EndpointClient:
    """Calls one endpoint, one attempt at a time.

    The API key is read from the environment at the first call and sent to ``base_url``'s own host only: redirects are
    not followed.

    Args:
        heed: is told the headers of every response; not those that a ready ``AsyncOpenAI`` keeps to itself.
    """

    def __init__(self, endpoint: Endpoint, clients: HttpClients, heed: Heed | None = None) -> None:
        self.endpoint = endpoint
        self._heed = heed
        self._transport: _Http | _Injected | None = None
        self._clients = clients

    async def complete(self, request: Request, *, timeout_s: float | None = None) -> Completion:
        """Ask once for a whole reply.

        Args:
            timeout_s: for the call; None: the endpoint's own.

        Raises:
            CallFailed: no chat completion came back; the failure says why.
            ConfigError: the endpoint has no address, or its key is not set.
        """
        transport = self._ready()
        body = self._body(request, transport.cap, stream=False)
        try:
            async with asyncio.timeout(timeout_s or self.endpoint.timeout_s):
                return await transport.complete(body)
        except TimeoutError:
            raise _timed_out() from None

    async def stream(
        self, request: Request, *, timeout_s: float | None = None, decoder: StreamDecoder | None = None
    ) -> AsyncGenerator[str | Completion, None]:
        """Ask once for a reply in pieces: yields each piece of text as it comes, and last the whole `Completion`.

        Close the iterator (`contextlib.aclosing`) to give up the call.

        Args:
            timeout_s: as in `complete`.
            decoder: a new one, for whoever wants to know the usage reported so far when the call is given up.

        Raises:
            CallFailed: as `complete`; also if the stream was cut, with the usage reported until then.
            ConfigError: as `complete`.
        """
        deadline = asyncio.get_running_loop().time() + (timeout_s or self.endpoint.timeout_s)
        decoder = decoder or StreamDecoder()
        transport = self._ready()
        pieces = transport.stream(self._body(request, transport.cap, stream=True), decoder)
        try:
            async with contextlib.aclosing(pieces):
                while (piece := await _next(pieces, deadline)) is not None:
                    if piece:
                        yield piece
        except TimeoutError:
            raise _timed_out(decoder.usage) from None
        except CallFailed as error:
            raise CallFailed(error.failure, error.usage or decoder.usage, free=error.free) from None
        yield decoder.finish()

    def _ready(self) -> _Http | _Injected:
        if self._transport is None:
            injected = self.endpoint.client is not None
            self._transport = _Injected(self.endpoint) if injected else _Http(self.endpoint, self._clients, self._heed)
        return self._transport

    def _body(self, request: Request, cap: CapField, *, stream: bool) -> dict[str, Any]:
        params = self.endpoint.params
        if params or stream != request.stream:
            request = replace(request, params={**params, **request.params}, stream=stream)
        return encode(request, self.endpoint.model, self.endpoint.spoken, cap=cap)


async def _next(pieces: AsyncIterator[str], deadline: float) -> str | None:
    """The next piece, None at the end. A timeout must not span a ``yield``, so each wait has its own."""
    async with asyncio.timeout_at(deadline):
        return await anext(pieces, None)


def _timed_out(usage: Usage | None = None) -> CallFailed:
    return CallFailed(Failure("timeout", "no whole reply within the time limit"), usage)


def _cap(base_url: str) -> CapField:
    host = urlsplit(base_url).hostname or ""
    own = any(host == known or host.endswith("." + known) for known in _OPENAI_HOSTS)
    return "max_completion_tokens" if own else "max_tokens"


class _Http:
    """Our own client: one POST, bounded and typed. A redirect is a failure like any other status."""

    def __init__(self, endpoint: Endpoint, clients: HttpClients, heed: Heed | None) -> None:
        import httpx
        import httpx_aiohttp  # noqa: F401 - loaded here, so that no call's time limit pays for it

        if endpoint.base_url is None:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: needed to call it (or client)")
        try:
            self._url = httpx.URL(endpoint.base_url + "/chat/completions")
        except httpx.InvalidURL:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: is not an address") from None
        self.cap = _cap(endpoint.base_url)
        self._clients = clients
        self._heed = heed
        self._key = _key(endpoint)
        self._proxy = _proxy(endpoint.base_url)
        # Some servers (llama.cpp's) hang up after a stream without having said so; services far away do not, and with
        # them a new connection would cost several times its way.
        self._keeps = self._url.scheme == "https" or endpoint.spoken in _REMOTE
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "focalroute"}
        if self._key:
            self._headers["Authorization"] = f"Bearer {self._key}"

    async def complete(self, body: Mapping[str, Any]) -> Completion:
        async with contextlib.aclosing(await self._post(body)) as response:
            return decode_bytes(await _read(_chunks(response), MAX_REPLY_BYTES))

    async def stream(self, body: Mapping[str, Any], decoder: StreamDecoder) -> AsyncGenerator[str, None]:
        response = await (self._post(body) if self._keeps else self._post(body, Connection="close"))
        async with contextlib.aclosing(response), contextlib.aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.done:
                    break
            if self._keeps and decoder.done:
                await _drained(chunks)

    async def _post(self, body: Mapping[str, Any], **headers: str) -> httpx.Response:
        import httpx
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

        sent = _json(body)
        request = httpx.Request(
            "POST", self._url, headers=self._headers | headers, content=sent, extensions={"timeout": _CONNECT}
        )
        transport = await self._clients.transport(self._proxy)
        try:
            response = await transport.handle_async_request(request)
        except (ClientError, ValueError) as error:  # what the transport has no httpx name for, or no characters
            raise broken(f"the service does not speak HTTP ({type(error).__name__})") from None
        except (httpx.TransportError, OSError) as error:
            cause = error.__cause__ or error  # the transport gives many of them one name
            failure = Failure("connection", f"could not reach the service ({type(cause).__name__})")
            raise CallFailed(failure, free=isinstance(cause, ClientConnectorError | ConnectionTimeoutError)) from None
        if self._heed is not None:
            self._heed(response.headers.raw)
        if not 200 <= response.status_code < 300:
            async with contextlib.aclosing(response):
                raise CallFailed(await self._refused(response, sent))
        return response

    async def _refused(self, response: httpx.Response, sent: bytes) -> Failure:
        try:
            payload = json.loads(await _read(_chunks(response), _MAX_ERROR_BYTES))
        except (ValueError, RecursionError, CallFailed):
            payload = None
        secrets = (sent.decode(), self._key or "")
        return refusal(response.status_code, response.headers, payload, secrets)


def _key(endpoint: Endpoint) -> str | None:
    secret = endpoint.api_key()
    key = secret.get_secret_value().strip() if secret else None
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"Endpoint {endpoint.name!r}: {endpoint.api_key_env} does not hold a key (odd characters in it)"
        )
    return key


def _proxy(base_url: str) -> str | None:
    """The proxy that the environment names for this address, looked up once."""
    parts = urlsplit(base_url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    return None if urllib.request.proxy_bypass(parts.hostname or "") else proxy


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"messages, params: cannot be sent as JSON ({type(error).__name__})") from None


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body in pieces, as they come."""
    import httpx
    from aiohttp import ClientError

    try:
        async for chunk in cast("httpx.AsyncByteStream", response.stream):
            yield chunk
    except (httpx.TransportError, ClientError, OSError) as error:
        raise broken(f"the reply was cut short ({type(error).__name__})") from None


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the end of a stream, if it comes at once, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, CallFailed):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                pass


async def _read(pieces: AsyncGenerator[bytes, None], limit: int) -> bytearray:
    body = bytearray()
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            body += piece
            if len(body) > limit:
                raise broken("the reply is too long")
    return body


class _Injected:
    """A ready ``AsyncOpenAI`` (2.x or 3.x), its own retries switched off. Only bytes cross this seam, piece by piece.

    Nor does it follow redirects for us: with some versions it would take an Azure key along, and always the prompt.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._client = endpoint.client.with_options(max_retries=0)  # ours: the user's own stays as it is
        self._prepare = self._client._prepare_options
        self._client._prepare_options = self._without_redirects
        # loads much code, for which no call's time limit shall pay
        self._completions = self._client.chat.completions.with_streaming_response
        self.cap = _cap(str(self._client.base_url))

    async def complete(self, body: Mapping[str, Any]) -> Completion:
        return decode_bytes(await _read(self._bytes(body), MAX_REPLY_BYTES))

    async def stream(self, body: Mapping[str, Any], decoder: StreamDecoder) -> AsyncGenerator[str, None]:
        async with contextlib.aclosing(self._bytes(body)) as chunks:
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.done:
                    return

    async def _bytes(self, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The body of the reply in pieces, as they come."""
        known = {name: value for name, value in body.items() if name in _BY_NAME}
        extra = {name: value for name, value in body.items() if name not in _BY_NAME}
        begun, failed = False, None
        try:
            async with self._completions.create(**known, extra_body=extra or None, extra_headers=_UNPACKED) as response:
                begun = True
                async for chunk in response.http_response.aiter_raw():
                    yield chunk
        except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
            unread = CallFailed(_translated(error, self._secrets(body)), free=_unsent(error))
            failed = _cut(error) if begun else unread
        if failed is not None:  # raised here, it has no context: the library's own exceptions quote what came back
            raise failed

    async def _without_redirects(self, options: Any) -> Any:
        prepared = await self._prepare(options) or options
        prepared.follow_redirects = False
        return prepared

    def _secrets(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        return (json.dumps(body, default=str), str(self._client.api_key))


def _cut(error: Exception) -> CallFailed:
    """The failure of a reply that broke off; httpx and httpx2 have the same names for a timeout of their own."""
    if "Timeout" in type(error).__name__:
        return CallFailed(Failure("timeout", "no whole reply within the client's own time limit"))
    return broken(f"the reply was cut short ({type(error).__name__})")


def _unsent(error: Exception) -> bool:
    """Whether the openai library could not even connect; httpx and httpx2 have the same names for it."""
    return type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")


def _translated(error: Exception, secrets: Sequence[str]) -> Failure:
    """The openai library's exceptions as our failures."""
    import openai

    name = type(error).__name__
    if isinstance(error, openai.APITimeoutError):
        return Failure("timeout", "no whole reply within the client's own time limit")
    if isinstance(error, openai.APIConnectionError):
        return Failure("connection", f"could not reach the service ({name})")
    if isinstance(error, openai.APIStatusError):
        return refusal(error.status_code, error.response.headers, error.body, secrets)
    return Failure("protocol", f"no chat completion came back ({name})")
