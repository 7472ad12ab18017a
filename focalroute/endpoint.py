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
from focalroute.injected import CHAT, COMPLETIONS, EMBEDDINGS, Injected, cap_field, read_all
from focalroute.records import Failure, Usage
from focalroute.wire import (
    MAX_REPLY_BYTES,
    CapField,
    Completion,
    Embedded,
    Request,
    StreamDecoder,
    broken,
    decode_bytes,
    decode_embeddings,
    decode_scored,
    encode,
    encode_scored,
    encode_texts,
    refusal,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["EndpointClient", "HttpClients"]

_MAX_CONNECTIONS = 1000
_MAX_ERROR_BYTES = 64 * 1024
_EXTENSIONS = {"timeout": {"connect": 10.0}}  # seconds; all else is bounded by `EndpointClient.complete`
_KEEPALIVE_S = 30.0
_REMOTE = ("together", "deepinfra", "openrouter")
_DRAIN_S = 0.05


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
        self._transport: _Http | Injected | None = None
        self._clients = clients

    async def complete(self, request: Request, *, timeout_s: float | None = None) -> Completion:
        """Ask once for a whole reply.

        Args:
            timeout_s: for the call; None: the endpoint's own.

        Raises:
            CallFailed: no chat completion came back; the failure says why.
            ConfigError: the endpoint has no address, or its key is not set.
        """
        request = self._with_params(request)
        if request.scored:
            body = await self._whole(COMPLETIONS, encode_scored(request, self.endpoint.model), timeout_s)
            return decode_scored(body, len(request.scored))
        return decode_bytes(await self._whole(CHAT, self._body(request, self._ready().cap), timeout_s))

    async def embed(self, texts: Sequence[str], *, timeout_s: float | None = None) -> Embedded:
        """Ask once for the embeddings of some texts.

        Raises:
            CallFailed: they did not come back; the failure says why.
            ConfigError: as `complete`.
        """
        body = encode_texts(texts, self.endpoint.model, self.endpoint.params)
        return decode_embeddings(await self._whole(EMBEDDINGS, body, timeout_s), len(texts))

    async def _whole(self, path: str, body: Mapping[str, Any], timeout_s: float | None) -> bytearray:
        transport = self._ready()
        try:
            async with asyncio.timeout(timeout_s or self.endpoint.timeout_s):
                return await transport.whole(path, body)
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
        request = replace(self._with_params(request), stream=True)
        pieces = transport.stream(self._body(request, transport.cap), decoder)
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

    def prepare(self) -> None:
        """Load what the first call needs, for which no time limit shall pay."""
        self._ready()

    def _ready(self) -> _Http | Injected:
        if self._transport is None:
            injected = self.endpoint.client is not None
            self._transport = Injected(self.endpoint) if injected else _Http(self.endpoint, self._clients, self._heed)
        return self._transport

    def _with_params(self, request: Request) -> Request:
        params = self.endpoint.params
        return replace(request, params={**params, **request.params}) if params else request

    def _body(self, request: Request, cap: CapField) -> dict[str, Any]:
        return encode(request, self.endpoint.model, self.endpoint.spoken, cap=cap)


async def _next(pieces: AsyncIterator[str], deadline: float) -> str | None:
    """The next piece, None at the end. A timeout must not span a ``yield``, so each wait has its own."""
    async with asyncio.timeout_at(deadline):
        return await anext(pieces, None)


def _timed_out(usage: Usage | None = None) -> CallFailed:
    return CallFailed(Failure("timeout", "no whole reply within the time limit"), usage)


class _Http:
    """Our own client: one POST, bounded and typed. A redirect is a failure like any other status."""

    def __init__(self, endpoint: Endpoint, clients: HttpClients, heed: Heed | None) -> None:
        import httpx
        import httpx_aiohttp  # noqa: F401 - loaded here, so that no call's time limit pays for it

        if endpoint.base_url is None:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: needed to call it (or client)")
        try:
            self._urls = {path: httpx.URL(endpoint.base_url + path) for path in (CHAT, COMPLETIONS, EMBEDDINGS)}
        except httpx.InvalidURL:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: is not an address") from None
        self.cap = cap_field(endpoint.base_url)
        self._clients = clients
        self._heed = heed
        self._key = _key(endpoint)
        self._proxy = _proxy(endpoint.base_url)
        # Some servers (llama.cpp's) hang up after a stream without having said so; services far away do not, and with
        # them a new connection would cost several times its way.
        self._keeps = endpoint.base_url.startswith("https:") or endpoint.spoken in _REMOTE
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "focalroute"}
        self._headers = httpx.Headers(headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {}))
        self._last = httpx.Headers([*self._headers.multi_items(), ("Connection", "close")])

    async def whole(self, path: str, body: Mapping[str, Any]) -> bytearray:
        """The body of the reply."""
        async with contextlib.aclosing(await self._post(path, body, self._headers)) as response:
            return await read_all(_chunks(response), MAX_REPLY_BYTES)

    async def stream(self, body: Mapping[str, Any], decoder: StreamDecoder) -> AsyncGenerator[str, None]:
        response = await self._post(CHAT, body, self._headers if self._keeps else self._last)
        async with contextlib.aclosing(response), contextlib.aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.done:
                    break
            if self._keeps and decoder.done:
                await _drained(chunks)

    async def _post(self, path: str, body: Mapping[str, Any], headers: httpx.Headers) -> httpx.Response:
        import httpx
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

        sent = _json(body)
        content = httpx.ByteStream(sent)  # as a stream: the transport adds the headers of its length and of the host
        request = httpx.Request("POST", self._urls[path], headers=headers, stream=content, extensions=_EXTENSIONS)
        request.read()
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
            payload = json.loads(await read_all(_chunks(response), _MAX_ERROR_BYTES))
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
