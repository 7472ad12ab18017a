"""An httpx transport over aiohttp's connections, at ten times the rate of httpx's own.

httpx's own connection pool takes time quadratic in the calls under way; `docs/results/speed.md` compares the two.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from io import BytesIO
from typing import Any

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
from aiohttp.connector import Connection
from multidict import CIMultiDict
from yarl import URL

from focalroute.core.files import most_files
from focalroute.core.tls import tls_context

_MAX_CONNECTIONS = 1000
_CONNECT_S = 10.0  # the caller bounds all else
_KEEPALIVE_S = 30.0
_MOST_CLOSED = 100  # connections closed for one call
_LARGE = 2**18  # bytes of a body that is sent in pieces, between which the loop is free


async def living() -> AsyncGenerator[ClientSession, None]:
    """Yield a session that lives as long as its loop: asyncio closes a loop's async generators when it ends."""
    connector = _Connector(limit=_most_connections(), keepalive_timeout=_KEEPALIVE_S, ssl=tls_context())
    timeout = ClientTimeout(sock_connect=_CONNECT_S)
    session = ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=DummyCookieJar(), trust_env=False
    )
    try:
        yield session
    finally:
        await session.close()


class _Connector(TCPConnector):
    """Closes an idle connection on which more came than was asked for; the next call would take it for its reply."""

    async def connect(self, *request: Any, **settings: Any) -> Connection:
        for _ in range(_MOST_CLOSED):
            found = await super().connect(*request, **settings)
            if found.protocol is None or not found.protocol.should_close:
                return found
            found.close()
        raise ClientConnectionError  # what answers there sends before it is asked


def _most_connections() -> int:
    """Return half as many as the process may open files: without files left, not only calls fail."""
    files = most_files()
    return _MAX_CONNECTIONS if files is None else min(_MAX_CONNECTIONS, files // 2)


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends requests unchanged; responses are streamed, and not decompressed.

    Args:
        session: returns the running loop's session.
        tls: replaces the session's; None: the session's.
        proxy: URL of the proxy, or None.
    """

    def __init__(
        self, session: Callable[[], Awaitable[ClientSession]], tls: ssl.SSLContext | None, proxy: str | None
    ) -> None:
        self._session = session
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._proxy = None if proxy is None else URL(proxy)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; the response is the caller's to close.

        Raises:
            httpx.TransportError: nothing came back.
        """
        session, body = await self._session(), request.read()
        try:
            response = await session.request(
                request.method,
                URL(str(request.url), encoded=True),
                data=body if len(body) < _LARGE else BytesIO(body),
                headers=CIMultiDict([(name.decode(), value.decode()) for name, value in request.headers.raw]),
                allow_redirects=False,
                proxy=self._proxy,
                ssl=self._tls,
            )
        except (ClientProxyConnectionError, ClientHttpProxyError) as error:
            raise httpx.ProxyError(type(error).__name__, request=request) from error
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            raise httpx.ConnectError(type(error).__name__, request=request) from error
        except (ClientConnectionError, OSError) as error:
            raise httpx.ReadError(type(error).__name__, request=request) from error
        except (ClientError, ValueError) as error:
            raise httpx.RemoteProtocolError(type(error).__name__, request=request) from error
        return httpx.Response(response.status, headers=response.raw_headers, stream=_Body(response), request=request)


class _Body(httpx.AsyncByteStream):
    """A response body as a stream."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        content = self._response.content
        try:
            piece = b"" if content.at_eof() else await content.readany()
        except (ClientError, OSError) as error:
            error.with_traceback(None)  # aiohttp's reader keeps the error, whose frames keep the reader: a cycle
            raise httpx.ReadError(type(error).__name__) from None
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Release the connection, for reuse if the body was read to its end; else close it."""
        if not self._response.closed:
            await self._response.__aexit__(None, None, None)
