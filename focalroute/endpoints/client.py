"""One endpoint: single attempts at a call, over our own HTTP session or a ready ``AsyncOpenAI``. Never retries."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.event_loops import PerLoop
from focalroute.core.records import Failure, Usage
from focalroute.endpoints.openai_client import CHAT, COMPLETIONS, EMBEDDINGS, OpenAITransport
from focalroute.endpoints.wire import CapField, Completion, Request, decode_bytes, encode
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.endpoints.wire.texts import Embeddings, decode_embeddings, decode_scored, encode_scored, encode_texts

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from focalroute.endpoints.http import Http, OnHeaders


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
        from focalroute.endpoints.http import living

        self._living = living()
        self.session = await anext(self._living)
        return self.session

    async def aclose(self) -> None:
        if self._living is not None:
            await self._living.aclose()


class EndpointClient:
    """Calls one endpoint, one attempt at a time.

    The API key is read from the environment at the first call and sent to ``base_url``'s own host only: redirects are
    not followed.

    Args:
        on_headers: called with the headers of every response; not those that a ready ``AsyncOpenAI`` keeps to itself.
    """

    def __init__(self, endpoint: Endpoint, clients: HttpClients, on_headers: OnHeaders | None = None) -> None:
        self.endpoint = endpoint
        self._on_headers = on_headers
        self._transport: Http | OpenAITransport | None = None
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

    async def embed(self, texts: Sequence[str], *, timeout_s: float | None = None) -> Embeddings:
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
            decoder: a new one, for a caller that needs the usage reported so far when the call is cancelled.

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

    def _ready(self) -> Http | OpenAITransport:
        if self._transport is None:
            self._transport = self._make_transport()
        return self._transport

    def _make_transport(self) -> Http | OpenAITransport:
        if self.endpoint.client is not None:
            return OpenAITransport(self.endpoint)
        from focalroute.endpoints.http import Http

        return Http(self.endpoint, self._clients.session, self._on_headers)

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
