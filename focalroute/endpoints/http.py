"""Makes HTTP requests to one endpoint, with bounded replies and typed failures. Importing it is slow.

Requests go through the user's ``httpx.AsyncClient`` or through `AiohttpTransport`; both return httpx responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import httpx
from pydantic_core import to_json

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.proxies import proxy_of
from focalroute.core.records import Failure
from focalroute.core.tls import tls_context
from focalroute.endpoints.openai_client import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MAX_ERROR_BYTES,
    OnHeaders,
    cap_field,
    pieces_of,
    private_values,
    read_all,
    unsent,
)
from focalroute.endpoints.wire import MAX_REPLY_BYTES
from focalroute.endpoints.wire.refusals import refusal_of
from focalroute.endpoints.wire.stream import StreamDecoder

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: Timeouts: connect, read, write, pool. The caller bounds all but the first.
_TIMEOUT = (10.0, None, None, None)
_HTTPX_S = 5.0  # httpx's default timeout, too short for a model
_REMOTE = ("together", "deepinfra", "openrouter")
_DRAIN_S = 0.05
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Http:
    """Sends requests to one endpoint. A redirect is a failure like any other status.

    Args:
        session: the running loop's, for an endpoint without an ``http_client``.
        on_headers: called with the headers of every response.

    Raises:
        ConfigError: the endpoint has no valid address, key, proxy or certificate.
    """

    def __init__(
        self, endpoint: Endpoint, session: Callable[[], Awaitable[ClientSession]], on_headers: OnHeaders | None
    ) -> None:
        if endpoint.base_url is None:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: needed to call it (or client)")
        self._base_url = endpoint.base_url
        try:
            self._urls = {path: httpx.URL(endpoint.base_url + path) for path in (CHAT, COMPLETIONS, EMBEDDINGS)}
        except httpx.InvalidURL:
            raise ConfigError(f"Endpoint {endpoint.name!r}: base_url: is not an address") from None
        self.cap = cap_field(endpoint.base_url)
        self._on_headers = on_headers
        key = endpoint.key()
        self._key = "" if key is None else key.get_secret_value()
        self._private = private_values(endpoint)
        # Some servers (llama.cpp's) close the connection after a stream without notice. Remote services do not, and a
        # new connection to them would cost several round trips.
        self._keeps = endpoint.base_url.startswith("https:") or endpoint.spoken in _REMOTE
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "focalroute"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._headers = httpx.Headers(headers)
        self._headers.update(endpoint.headers)
        self._send = _sender(endpoint, session)

    async def read(self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytearray:
        """Return the reply's body; without a ``body`` it is a GET request, and bounded by `MAX_ERROR_BYTES`."""
        response = await self._request(path, body, headers)
        try:
            return await read_all(response, MAX_ERROR_BYTES if body is None else MAX_REPLY_BYTES)
        finally:
            await response.aclose()

    async def stream(
        self, body: Mapping[str, Any], headers: Mapping[str, str], decoder: StreamDecoder
    ) -> AsyncGenerator[str, None]:
        """Yield the text of a reply in pieces, as they come."""
        response = await self._request(CHAT, body, headers if self._keeps else {**headers, "Connection": "close"})
        try:
            async with contextlib.aclosing(pieces_of(response)) as chunks:
                async for chunk in chunks:
                    yield decoder.feed(chunk)
                    if decoder.done:
                        break
                if self._keeps and decoder.done:
                    await _drained(chunks)
        finally:
            await response.aclose()

    def _request(
        self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> Awaitable[httpx.Response]:
        own = self._headers
        if headers:
            own = own.copy()
            own.update(headers)
        if body is None:
            return self._exchange("GET", httpx.URL(self._base_url + path), own, b"")
        return self._exchange("POST", self._urls[path], own, _json(body))

    async def _exchange(self, method: str, url: httpx.URL, headers: httpx.Headers, sent: bytes) -> httpx.Response:
        """Send a request and return the response; CallFailed if it is a failure."""
        failed: list[CallFailed] = []
        try:
            response = await self._send(method, url, headers, sent)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's client raises is this call's failure
            failed.append(unsent(error))
        if failed:  # raised here so that it has no context: a client's error may quote the request
            raise failed.pop()
        if self._on_headers is not None:
            self._on_headers(response.headers.raw)
        if not 200 <= response.status_code < 300:
            try:
                raise CallFailed(await self._refused(response, sent))
            finally:
                await response.aclose()
        return response

    async def _refused(self, response: httpx.Response, sent: bytes) -> Failure:
        try:
            payload = json.loads(await read_all(response, MAX_ERROR_BYTES))
        except (ValueError, RecursionError, CallFailed):
            payload = None
        return refusal_of(response.status_code, response.headers, payload, self._secrets(sent))

    def secrets(self, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the texts that no message may quote: the request and the key."""
        return self._secrets(_json(body))

    def _secrets(self, sent: bytes) -> tuple[str, ...]:
        return (sent.decode(), self._key, *self._private)


def _sender(
    endpoint: Endpoint, session: Callable[[], Awaitable[ClientSession]]
) -> Callable[[str, httpx.URL, httpx.Headers, bytes], Awaitable[httpx.Response]]:
    """Return the function that sends a request: by the user's client, without redirects, or by our own transport."""
    client: httpx.AsyncClient | None = endpoint.http_client
    if client is not None:
        given = client.timeout
        timeout = (given.connect, given.read, given.write, given.pool)
        if set(timeout) == {_HTTPX_S}:
            timeout = _TIMEOUT

        async def by_client(method: str, url: httpx.URL, headers: httpx.Headers, content: bytes) -> httpx.Response:
            plain = dict(headers)  # httpx2 has its own types
            request = client.build_request(method, str(url), headers=plain, content=content, timeout=timeout)
            return await client.send(request, stream=True, follow_redirects=False)

        return by_client
    from focalroute.endpoints.aiohttp_transport import AiohttpTransport

    own_tls = endpoint.verify is not True or endpoint.cert is not None
    tls = tls_context(endpoint.verify, endpoint.cert) if own_tls else None
    transport = AiohttpTransport(session, tls, proxy_of(endpoint))

    def by_transport(method: str, url: httpx.URL, headers: httpx.Headers, content: bytes) -> Awaitable[httpx.Response]:
        body = httpx.ByteStream(content)  # as content=, httpx takes 20 us more for what aiohttp does by itself
        return transport.handle_async_request(httpx.Request(method, url, headers=headers, stream=body))

    return by_transport


def _json(body: Mapping[str, Any]) -> bytes:
    try:
        return to_json(body)  # six times as fast as json; encoding a long prompt blocks the event loop
    except ValueError:
        return _json_by_python(body)


def _json_by_python(body: Mapping[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(body).encode()  # accepts lone surrogates
    except (TypeError, ValueError) as error:
        raise ConfigError(f"messages, params: cannot be sent as JSON ({type(error).__name__})") from None


async def _drained(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the end of a stream, if it comes at once, so that its connection can be used again."""
    with contextlib.suppress(TimeoutError, CallFailed):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in chunks:
                pass
