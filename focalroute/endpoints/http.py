"""Sends HTTP requests to one endpoint. This module is slow to import.

Requests go through the user's ``httpx.AsyncClient`` if there is one, else through aiohttp: the time that httpx's own
connection pool takes is quadratic in the number of concurrent calls (`docs/results/speed.md` compares the two).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from io import BytesIO
from typing import Any, cast
from weakref import WeakSet

import aiohttp
import httpx
from aiohttp.connector import Connection
from multidict import CIMultiDict
from pydantic_core import to_json
from yarl import URL

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.files import most_files
from focalroute.core.network import proxy_of, tls_context
from focalroute.core.records import Failure
from focalroute.endpoints.transport import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MAX_ERROR_BYTES,
    OnHeaders,
    Transport,
    read_all,
    request_failure,
)
from focalroute.endpoints.wire.refusals import error_body, refusal_of

_CONNECT_S = 10.0  # the caller bounds the time for all else
_HTTPX_S = 5.0  # httpx's default timeout, too short for a model
_REMOTE = ("together", "deepinfra", "openrouter")  # dialects of services that are never on this machine
_DRAIN_S = 0.05
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_MAX_CONNECTIONS = 1000
_MAX_DISCARDED = 100  # idle connections discarded for one call
_KEEPALIVE_S = 30.0
_HEADER_BYTES = 2**16  # longest header of a response; aiohttp's 8 KiB are fewer than some proxies send
_LARGE = 2**18  # bytes of a body that is sent in pieces, between which the event loop is free

#: Sends a request (method, URL, headers, body) and returns a response with httpx's interface.
Sender = Callable[[str, str, CIMultiDict[str], bytes], Awaitable[Any]]


class Http(Transport):
    """Sends requests to one endpoint.

    Args:
        session: returns the running loop's session, for an endpoint without an ``http_client``.
        on_headers: called with the headers of every response.

    Raises:
        ConfigError: the endpoint has no valid address, key, proxy or certificate.
    """

    def __init__(
        self, endpoint: Endpoint, session: Callable[[], Awaitable[aiohttp.ClientSession]], on_headers: OnHeaders
    ) -> None:
        if endpoint.base_url is None:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: is missing; give the service's URL, or a client")
        self._base_url = endpoint.base_url
        try:
            self._urls = {path: str(httpx.URL(endpoint.base_url + path)) for path in (CHAT, COMPLETIONS, EMBEDDINGS)}
        except httpx.InvalidURL:
            raise ConfigError(
                f"Endpoint {endpoint.name!r}: base_url: is not a URL; write it like https://host/v1"
            ) from None
        masked = endpoint.key()
        key = "" if masked is None else masked.get_secret_value()
        super().__init__(endpoint, endpoint.base_url, lambda: key, on_headers)
        # Some local servers (llama.cpp's) close the connection after a stream without notice. Remote services do not,
        # and a new connection to them would cost several round trips.
        self._reuses_after_stream = endpoint.base_url.startswith("https:") or endpoint.spoken in _REMOTE
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "focalroute"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._headers = CIMultiDict(headers)
        self._headers.update(endpoint.headers)
        if endpoint.http_client is None:
            self._send = _aiohttp_sender(endpoint, session, on_headers)
        else:
            self._send = _httpx_sender(endpoint.http_client, on_headers)

    async def _open(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Any:
        if body and body.get("stream") and not self._reuses_after_stream:
            headers = {**headers, "Connection": "close"}
        all_headers = self._headers
        if headers:
            all_headers = all_headers.copy()
            all_headers.update(headers)
        method, sent = ("GET", b"") if body is None else ("POST", _json(body))
        failed: list[CallFailed] = []
        try:
            url = self._urls.get(path) or str(httpx.URL(self._base_url + path))
            response = await self._send(method, url, all_headers, sent)
        except (CallFailed, ConfigError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
            failed.append(request_failure(error))
        if failed:  # raised outside `except`, so that it has no context: a client's error may quote the request
            raise failed.pop()
        if not 200 <= response.status_code < 300:
            try:
                raise CallFailed(await self._refusal(response, body))
            finally:
                await response.aclose()
        return response

    async def _refusal(self, response: Any, body: Mapping[str, Any] | None) -> Failure:
        payload: object = None
        with contextlib.suppress(CallFailed):
            payload = error_body(await read_all(response, MAX_ERROR_BYTES))
        return refusal_of(response.status_code, response.headers, payload, self.secrets(body))

    async def _drain(self, chunks: AsyncIterator[bytes]) -> None:
        """Read what follows the end of a stream, if it arrives at once, so that its connection can be reused."""
        if self._reuses_after_stream:
            with contextlib.suppress(TimeoutError, CallFailed):
                async with asyncio.timeout(_DRAIN_S):
                    async for _ in chunks:
                        pass


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return to_json(body)  # six times as fast as json; encoding a long prompt blocks the event loop
    except ValueError:
        pass
    try:
        return _ENCODER.encode(body).encode()  # accepts lone surrogates
    except (TypeError, ValueError) as error:
        reason = type(error).__name__
        raise ConfigError(f"messages, params: cannot be sent as JSON ({reason}); give plain values only") from None


def _httpx_sender(client: httpx.AsyncClient, on_headers: OnHeaders) -> Sender:
    """Return a function that sends requests through the user's client, with its timeouts unless they are httpx's."""
    given = client.timeout
    timeout = (given.connect, given.read, given.write, given.pool)
    if set(timeout) == {_HTTPX_S}:
        timeout = (_CONNECT_S, None, None, None)

    async def send(method: str, url: str, headers: CIMultiDict[str], body: bytes) -> Any:
        request = client.build_request(method, url, headers=dict(headers), content=body, timeout=timeout)
        response = await client.send(request, stream=True, follow_redirects=False)
        on_headers(response.headers.raw)
        return response

    return send


# -- aiohttp's connections ---------------------------------------------------------------------------------------------


async def session_of_loop() -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Yield a session that lives as long as its loop: asyncio closes a loop's async generators when it ends."""
    files = most_files()  # half of them at most: a process without free file descriptors fails at more than calls
    limit = _MAX_CONNECTIONS if files is None else min(_MAX_CONNECTIONS, files // 2)
    connector = _Connector(limit=limit, keepalive_timeout=_KEEPALIVE_S, ssl=tls_context())
    timeout, no_cookies = aiohttp.ClientTimeout(sock_connect=_CONNECT_S), aiohttp.DummyCookieJar()
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=no_cookies,
        trust_env=False,
        max_field_size=_HEADER_BYTES,
    )
    try:
        yield session
    finally:
        for response in tuple(connector.responses):  # aiohttp would leave their readers waiting for ever
            response.close()
        await session.close()


class _Connector(aiohttp.TCPConnector):
    """Discards an idle connection on which unrequested data has arrived: the next call would take it for its reply.

    A connection for a request with "Connection: close" is not reused, whether or not the reply says the same.

    Attributes:
        responses: those that may still be read.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.responses: WeakSet[aiohttp.ClientResponse] = WeakSet()

    async def connect(self, req: Any, *more: Any, **settings: Any) -> Connection:
        for _ in range(2):  # a loop that was blocked learns only now which connections the services have closed
            await asyncio.sleep(0)
        for _ in range(_MAX_DISCARDED):
            found = await super().connect(req, *more, **settings)
            if found.protocol is None or not found.protocol.should_close:
                if found.protocol is not None and req.headers.get("Connection") == "close":
                    found.protocol.force_close()
                return found
            found.close()
        raise aiohttp.ClientConnectionError  # the server sends data before any request


def _aiohttp_sender(
    endpoint: Endpoint, session: Callable[[], Awaitable[aiohttp.ClientSession]], on_headers: OnHeaders
) -> Sender:
    """Return a function that sends requests over the loop's session, with httpx's response interface and exceptions."""
    own_tls = endpoint.verify is not True or endpoint.cert is not None
    tls = tls_context(endpoint.verify, endpoint.cert) if own_tls else True  # True: the session's
    proxy = proxy_of(endpoint)
    proxy_url = None if proxy is None else URL(proxy)

    async def send(method: str, url: str, headers: CIMultiDict[str], body: bytes) -> Any:
        loop_session = await session()
        try:
            response = await loop_session.request(
                method,
                URL(url, encoded=True),
                data=body if len(body) < _LARGE else BytesIO(body),
                headers=headers,
                allow_redirects=False,
                proxy=proxy_url,
                ssl=tls,
            )
        except (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError) as error:
            raise httpx.ProxyError(type(error).__name__) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise httpx.ConnectError(type(error).__name__) from error
        except aiohttp.ClientConnectionResetError as error:  # the service had closed a connection that was idle
            raise httpx.WriteError(type(error).__name__) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise httpx.ReadError(type(error).__name__) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise httpx.RemoteProtocolError(type(error).__name__) from error
        cast("_Connector", loop_session.connector).responses.add(response)
        on_headers(response.raw_headers)
        return _Response(response)

    return send


class _Response:
    """The part of httpx's response interface that `Transport` uses; a real httpx response takes longer to make."""

    is_stream_consumed = False

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status_code, self.headers = response.status, response.headers

    @property
    def stream(self) -> AsyncIterator[bytes]:
        """The body, in pieces."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        content = self._response.content
        try:
            piece = b"" if content.at_eof() else await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            error.with_traceback(None)  # aiohttp's reader keeps the error, whose frames keep the reader: a cycle
            raise httpx.ReadError(type(error).__name__) from None
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Release the connection, for reuse if the body was read to its end; else close it."""
        if not self._response.closed:
            await self._response.__aexit__(None, None, None)
