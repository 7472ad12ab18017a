"""One endpoint: single attempts at a call, over our own HTTP session or a ready ``AsyncOpenAI``. Never retries.

HTTP is aiohttp's; `docs/performance.md` compares the choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import ssl
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from focalroute.config import Endpoint
from focalroute.errors import CallFailed, ConfigError
from focalroute.injected import CHAT, COMPLETIONS, EMBEDDINGS, Injected, cap_field, read_all
from focalroute.loops import PerLoop
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
    from aiohttp import ClientResponse, ClientSession
    from multidict import CIMultiDict
    from yarl import URL

__all__ = ["EndpointClient", "HttpClients"]

_MAX_CONNECTIONS = 1000
_MAX_ERROR_BYTES = 64 * 1024
_CONNECT_S = 10.0  # all else is bounded by `EndpointClient.complete`
_KEEPALIVE_S = 30.0
_REMOTE = ("together", "deepinfra", "openrouter")
_DRAIN_S = 0.05
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


#: Takes the raw headers of a response.
Heed = Callable[[Iterable[tuple[bytes, bytes]]], None]


class HttpClients:
    """One HTTP session for each running event loop, its connections kept alive, for all endpoints."""

    def __init__(self) -> None:
        self._open = PerLoop(_Open)

    async def session(self) -> ClientSession:
        """The running loop's session, made on first use. It closes with the loop, or with `aclose`."""
        found = self._open.here()
        return found.session or await found.begin()

    async def aclose(self) -> None:
        """Close the running loop's session and its connections. Idempotent."""
        found = self._open.pop()
        if found is not None:
            await found.aclose()


class _Open:
    """One loop's session; None before it is begun."""

    def __init__(self) -> None:
        self.session: ClientSession | None = None
        self._living: AsyncGenerator[ClientSession, None] | None = None

    async def begin(self) -> ClientSession:
        self._living = _living()
        self.session = await anext(self._living)
        return self.session

    async def aclose(self) -> None:
        if self._living is not None:
            await self._living.aclose()


async def _living() -> AsyncGenerator[ClientSession, None]:
    """A session that lives as long as its loop: asyncio closes the async generators of a loop that ends."""
    from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

    connector = TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S, ssl=_trusted())
    timeout = ClientTimeout(sock_connect=_CONNECT_S)
    session = ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=DummyCookieJar(), trust_env=False
    )
    try:
        yield session
    finally:
        await session.close()


def _trusted() -> ssl.SSLContext:
    """Whose certificates are believed: as in httpx and openai those of SSL_CERT_FILE or SSL_CERT_DIR, else certifi's.

    httpx has that in a function, but importing it takes 50 ms of a first call.

    Raises:
        ConfigError: that file cannot be read, or holds none.
    """
    import certifi

    if file := os.environ.get("SSL_CERT_FILE"):
        try:
            return ssl.create_default_context(cafile=file)
        except OSError as error:
            raise ConfigError(f"SSL_CERT_FILE: {file}: no certificates can be read from it ({error})") from None
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())


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
            timeout_s: for the call; None: the endpoint's own; infinite: the caller sees to it.

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
        if timeout_s == math.inf:
            return await transport.whole(path, body)
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
        import aiohttp  # noqa: F401 - loaded here, so that no call's time limit pays for it
        from multidict import CIMultiDict
        from yarl import URL

        if endpoint.base_url is None:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: needed to call it (or client)")
        try:
            self._urls = {path: URL(endpoint.base_url + path) for path in (CHAT, COMPLETIONS, EMBEDDINGS)}
        except ValueError:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: is not an address") from None
        self.cap = cap_field(endpoint.base_url)
        self._clients = clients
        self._heed = heed
        self._key = _key(endpoint)
        self._proxy = _proxy(endpoint)
        # Some servers (llama.cpp's) hang up after a stream without having said so; services far away do not, and with
        # them a new connection would cost several times its way.
        self._keeps = endpoint.base_url.startswith("https:") or endpoint.spoken in _REMOTE
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "focalroute"}
        self._headers = CIMultiDict(headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {}))
        self._last = CIMultiDict([*self._headers.items(), ("Connection", "close")])

    async def whole(self, path: str, body: Mapping[str, Any]) -> bytearray:
        """The body of the reply."""
        async with await self._post(path, body, self._headers) as response:
            return await read_all(partial(_piece, response), MAX_REPLY_BYTES)

    async def stream(self, body: Mapping[str, Any], decoder: StreamDecoder) -> AsyncGenerator[str, None]:
        response = await self._post(CHAT, body, self._headers if self._keeps else self._last)
        async with response, contextlib.aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.done:
                    break
            if self._keeps and decoder.done:
                await _drained(chunks)

    async def _post(self, path: str, body: Mapping[str, Any], headers: CIMultiDict[str]) -> ClientResponse:
        from aiohttp import (
            ClientConnectionError,
            ClientConnectorError,
            ClientError,
            ClientHttpProxyError,
            ConnectionTimeoutError,
        )

        sent = _json(body)
        session = await self._clients.session()
        try:
            response = await session.post(
                self._urls[path], data=sent, headers=headers, allow_redirects=False, proxy=self._proxy
            )
        except (ClientConnectionError, ClientHttpProxyError, OSError) as error:
            failure = Failure("connection", f"could not reach the service ({type(error).__name__})")
            raise CallFailed(failure, free=isinstance(error, ClientConnectorError | ConnectionTimeoutError)) from None
        except (ClientError, ValueError) as error:
            raise broken(f"the service does not speak HTTP ({type(error).__name__})") from None
        if self._heed is not None:
            self._heed(response.raw_headers)
        if not 200 <= response.status < 300:
            async with response:
                raise CallFailed(await self._refused(response, sent))
        return response

    async def _refused(self, response: ClientResponse, sent: bytes) -> Failure:
        try:
            payload = json.loads(await read_all(partial(_piece, response), _MAX_ERROR_BYTES))
        except (ValueError, RecursionError, CallFailed):
            payload = None
        secrets = (sent.decode(), self._key or "")
        return refusal(response.status, response.headers, payload, secrets)


def _key(endpoint: Endpoint) -> str | None:
    secret = endpoint.api_key()
    key = secret.get_secret_value().strip() if secret else None
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"Endpoint {endpoint.name!r}: {endpoint.api_key_env} does not hold a key (odd characters in it)"
        )
    return key


def _proxy(endpoint: Endpoint) -> URL | None:
    """The proxy that the environment names for this address, looked up once."""
    from yarl import URL

    parts = urlsplit(endpoint.base_url or "")
    said = urllib.request.getproxies().get(parts.scheme)
    if not said or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    try:
        proxy = URL(said if "://" in said else f"http://{said}")
    except ValueError:
        proxy = URL()
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise ConfigError(
            f"Endpoint {endpoint.name!r}: {parts.scheme}_proxy: is not an address such as http://proxy:3128"
        )
    return proxy


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(body).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"messages, params: cannot be sent as JSON ({type(error).__name__})") from None


async def _piece(response: ClientResponse) -> bytes:
    """What came of the body meanwhile, waited for; empty at its end."""
    from aiohttp import ClientError

    try:
        return await response.content.readany()
    except (ClientError, OSError) as error:
        raise broken(f"the reply was cut short ({type(error).__name__})") from None


async def _chunks(response: ClientResponse) -> AsyncGenerator[bytes, None]:
    """The body in pieces, as they come."""
    while piece := await _piece(response):
        yield piece


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the end of a stream, if it comes at once, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, CallFailed):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                pass
