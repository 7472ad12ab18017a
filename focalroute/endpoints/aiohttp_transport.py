"""Requests over aiohttp's connections, with httpx's errors, at ten times its rate.

httpx's own connection pool takes time quadratic in the calls under way; `docs/results/speed.md` compares the two.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from io import BytesIO

import httpx
from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientProxyConnectionError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    TCPConnector,
)
from multidict import CIMultiDict
from yarl import URL

from focalroute.core.open_files import most_files
from focalroute.core.tls import tls_context
from focalroute.endpoints.openai_client import RawHeaders

_MAX_CONNECTIONS = 1000
_CONNECT_S = 10.0  # all else is bounded by the caller
_KEEPALIVE_S = 30.0
_LARGE = 2**18  # bytes of a body that is sent in pieces, between which the loop is free


async def living() -> AsyncGenerator[ClientSession, None]:
    """A session that lives as long as its loop: asyncio closes the async generators of a loop that ends."""
    connector = TCPConnector(limit=_most_connections(), keepalive_timeout=_KEEPALIVE_S, ssl=tls_context())
    timeout = ClientTimeout(sock_connect=_CONNECT_S)
    session = ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=DummyCookieJar(), trust_env=False
    )
    try:
        yield session
    finally:
        await session.close()


def _most_connections() -> int:
    """Half as many as the process may open files: where it can open no more, all calls fail, and not only they."""
    files = most_files()
    return _MAX_CONNECTIONS if files is None else min(_MAX_CONNECTIONS, files // 2)


class AiohttpTransport:
    """Sends requests as they are.

    Args:
        session: the running loop's.
        tls: instead of the session's.
        proxy: None: none.
    """

    def __init__(
        self, session: Callable[[], Awaitable[ClientSession]], tls: ssl.SSLContext | None, proxy: str | None
    ) -> None:
        self._session = session
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._proxy = None if proxy is None else URL(proxy)

    async def send(
        self, method: str, url: URL, headers: CIMultiDict[str], body: bytes
    ) -> tuple[AiohttpResponse, RawHeaders]:
        """Send one request; the response, which is the caller's to close, and its headers as they came.

        Raises:
            httpx.TransportError: nothing came back.
        """
        session = await self._session()
        try:
            response = await session.request(
                method,
                url,
                data=body if len(body) < _LARGE else BytesIO(body),
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
                ssl=self._tls,
            )
        except (ClientProxyConnectionError, ClientHttpProxyError) as error:
            raise httpx.ProxyError(type(error).__name__) from error
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            raise httpx.ConnectError(type(error).__name__) from error
        except (ClientConnectionError, OSError) as error:
            raise httpx.ReadError(type(error).__name__) from error
        except (ClientError, ValueError) as error:
            raise httpx.RemoteProtocolError(type(error).__name__) from error
        return AiohttpResponse(response), response.raw_headers


class AiohttpResponse:
    """As much of an httpx response as is needed; it is not unpacked, and comes as it is read."""

    is_stream_consumed = False

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.status_code = response.status
        self.headers = response.headers

    @property
    def stream(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._response.content.readany()
        except (ClientError, OSError) as error:
            error.with_traceback(None)  # aiohttp's reader keeps it, and its frames that reader: a cycle
            raise httpx.ReadError(type(error).__name__) from None
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Let go of the connection: kept where the body was read to its end, else closed."""
        if not self._response.closed:
            await self._response.__aexit__(None, None, None)
