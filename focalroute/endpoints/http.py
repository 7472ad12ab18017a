"""HTTP to one endpoint, by aiohttp: one POST, bounded and typed. Loading it takes a first call's while.

`docs/performance.md` compares the choices.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import certifi
from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from multidict import CIMultiDict
from yarl import URL

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.records import Failure
from focalroute.endpoints.openai_client import CHAT, COMPLETIONS, EMBEDDINGS, cap_field, read_all
from focalroute.endpoints.wire import MAX_REPLY_BYTES
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import refusal_of
from focalroute.endpoints.wire.stream import StreamDecoder

_MAX_CONNECTIONS = 1000
_MAX_ERROR_BYTES = 64 * 1024
_CONNECT_S = 10.0  # all else is bounded by the caller
_KEEPALIVE_S = 30.0
_REMOTE = ("together", "deepinfra", "openrouter")
_DRAIN_S = 0.05
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

#: Takes the raw headers of a response.
OnHeaders = Callable[[Iterable[tuple[bytes, bytes]]], None]


async def living() -> AsyncGenerator[ClientSession, None]:
    """A session that lives as long as its loop: asyncio closes the async generators of a loop that ends."""
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
    if file := os.environ.get("SSL_CERT_FILE"):
        try:
            return ssl.create_default_context(cafile=file)
        except OSError as error:
            raise ConfigError(f"SSL_CERT_FILE: {file}: no certificates can be read from it ({error})") from None
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    return ssl.create_default_context(cafile=certifi.where())


class Http:
    """One endpoint's address, key and proxy. A redirect is a failure like any other status.

    Args:
        session: the running loop's.
        on_headers: called with the headers of every response.

    Raises:
        ConfigError: the endpoint has no address, its key or proxy is none, or its key is not set.
    """

    def __init__(
        self, endpoint: Endpoint, session: Callable[[], Awaitable[ClientSession]], on_headers: OnHeaders | None
    ) -> None:
        if endpoint.base_url is None:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: needed to call it (or client)")
        try:
            self._urls = {path: URL(endpoint.base_url + path) for path in (CHAT, COMPLETIONS, EMBEDDINGS)}
        except ValueError:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: is not an address") from None
        self.cap = cap_field(endpoint.base_url)
        self._session = session
        self._on_headers = on_headers
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
        """The text of a reply in pieces, as they come."""
        response = await self._post(CHAT, body, self._headers if self._keeps else self._last)
        async with response, contextlib.aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.done:
                    break
            if self._keeps and decoder.done:
                await _drained(chunks)

    async def _post(self, path: str, body: Mapping[str, Any], headers: CIMultiDict[str]) -> ClientResponse:
        sent = _json(body)
        session = await self._session()
        try:
            response = await session.post(
                self._urls[path], data=sent, headers=headers, allow_redirects=False, proxy=self._proxy
            )
        except (ClientConnectionError, ClientHttpProxyError, OSError) as error:
            failure = Failure("connection", f"could not reach the service ({type(error).__name__})")
            raise CallFailed(failure, free=isinstance(error, ClientConnectorError | ConnectionTimeoutError)) from None
        except (ClientError, ValueError) as error:
            raise protocol_error(f"the service does not speak HTTP ({type(error).__name__})") from None
        if self._on_headers is not None:
            self._on_headers(response.raw_headers)
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
        return refusal_of(response.status, response.headers, payload, secrets)


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
    try:
        return await response.content.readany()
    except (ClientError, OSError) as error:
        raise protocol_error(f"the reply was cut short ({type(error).__name__})") from None


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
