"""Sends single calls to one endpoint, over HTTP or through the user's own ``AsyncOpenAI``.

A failed call is not retried here (see `focalroute.endpoints.calls`); only a call that the service refused because of an
optional field is sent again without that field.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError
from focalroute.core.event_loops import PerLoop
from focalroute.core.network import tls_context
from focalroute.core.records import Failure, Usage
from focalroute.endpoints import wire
from focalroute.endpoints.quirks import Quirks
from focalroute.endpoints.transport import CHAT, COMPLETIONS, EMBEDDINGS, OnHeaders, OpenAITransport, Transport
from focalroute.endpoints.wire import Completion, Request
from focalroute.endpoints.wire.fields import stated_cost
from focalroute.endpoints.wire.refusals import with_service_message
from focalroute.endpoints.wire.stream import StreamDecoder

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: Time limit for looking up what a call cost.
LOOKUP_S = 10.0
_USAGE_S = 2.0  # how long to wait for the usage once the text of a streamed reply has ended


class HttpSessions:
    """The HTTP sessions of a pool: one for each running event loop, shared by all endpoints."""

    def __init__(self) -> None:
        self._sessions = PerLoop(_LoopSession)

    @staticmethod
    def load() -> None:
        """Import the slow modules now, so that the first call does not block its event loop with it."""
        from focalroute.endpoints import http  # noqa: F401

        with contextlib.suppress(ConfigError):  # a call that needs certificates reports it
            tls_context()

    async def session(self) -> ClientSession:
        """Return the running loop's session, opened on first use. It closes with the loop, or with `aclose`.

        Raises:
            CallFailed: it was closed.
        """
        loop_session = self._sessions.here()
        return loop_session.session or await loop_session.open()

    async def aclose(self) -> None:
        """Close the running loop's session and its connections for good. Idempotent."""
        await self._sessions.here().aclose()


class _LoopSession:
    """One loop's session; None until it is opened, and once it is closed."""

    def __init__(self) -> None:
        self.session: ClientSession | None = None
        self._generator: AsyncGenerator[ClientSession, None] | None = None
        self._closed = False

    async def open(self) -> ClientSession:
        from focalroute.endpoints.http import session_of_loop

        if self._closed:
            raise CallFailed(Failure("cancelled", "the ensemble was closed"), free=True)
        self._generator = session_of_loop()
        self.session = await anext(self._generator)
        return self.session

    async def aclose(self) -> None:
        self._closed, self.session = True, None
        if self._generator is not None:
            await self._generator.aclose()


class EndpointClient:
    """Calls one endpoint, one attempt at a time.

    The API key is read from the environment at the first call and sent to ``base_url``'s own host only: redirects are
    not followed.

    Args:
        on_headers: called with the headers of every response.
    """

    def __init__(self, endpoint: Endpoint, sessions: HttpSessions, on_headers: OnHeaders = lambda _: None) -> None:
        self.endpoint = endpoint
        self.quirks = Quirks(endpoint)
        self._on_headers = on_headers
        self._sessions = sessions

    async def complete(self, request: Request, *, timeout_s: float | None = None) -> Completion:
        """Send a request and return the whole reply.

        If the service refuses an optional field, the request is sent again without it: refusals are not billed.

        Args:
            timeout_s: time limit, seconds; None: the endpoint's own; infinite: the caller enforces one.

        Raises:
            CallFailed: no chat completion came back; the failure says why.
            ConfigError: the endpoint has no address, or its key is not set.
        """
        request, headers = self._with_params(request)
        while True:
            body = self._body(request)
            try:
                completion = await self._complete(body, headers, len(request.scored), timeout_s)
            except CallFailed as error:
                if not self._adapts(error.failure, request, body):
                    raise
            else:
                return self.quirks.learn_from_reply(completion, body)

    def _adapts(self, failure: Failure, request: Request, sent: Mapping[str, Any]) -> bool:
        """Learn from a refusal; return whether the request would now be sent in another form."""
        return self.quirks.learn_from_refusal(failure) and self._body(request) != sent

    async def _complete(
        self, body: Mapping[str, Any], headers: Mapping[str, str], scored: int, timeout_s: float | None
    ) -> Completion:
        """Send a body once; ``scored``: the number of texts to score, 0 for a chat completion."""
        try:
            reply = await self._read(COMPLETIONS if scored else CHAT, body, headers, timeout_s)
            return wire.decode_scored(reply, scored) if scored else wire.decode_bytes(reply)
        except CallFailed as error:
            raise self._with_service_message(error, body) from None

    async def embed(self, texts: Sequence[str]) -> wire.Embeddings:
        """Return the embeddings of some texts, in one call.

        Raises:
            CallFailed: they did not come back; the failure says why.
            ConfigError: as `complete`.
        """
        body = wire.encode_texts(texts, self.endpoint.model, self.endpoint.params)
        return wire.decode_embeddings(await self._read(EMBEDDINGS, body, {}, None), len(texts))

    async def cost_of(self, generation: str) -> Decimal | None:
        """Look up the cost of an earlier call, USD, by the service's id for it; None: not known, or not yet.

        Raises:
            CallFailed: as `complete`.
        """
        return stated_cost(wire.parse_json(await self._read(f"/generation?id={generation}", None, {}, LOOKUP_S)))

    async def _read(
        self, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], timeout_s: float | None
    ) -> bytearray:
        """Return the body of a reply, within the time limit (see `complete`)."""
        transport = self._transport
        if timeout_s == math.inf:
            return await transport.read(path, body, headers)
        try:
            async with asyncio.timeout(timeout_s or self.endpoint.timeout_s):
                return await transport.read(path, body, headers)
        except TimeoutError:
            raise _timed_out() from None

    async def stream(
        self, request: Request, *, timeout_s: float | None = None, decoder: StreamDecoder | None = None
    ) -> AsyncGenerator[str | Completion, None]:
        """Send a request; yield each piece of the reply's text as it arrives, and at the end the whole `Completion`.

        Close the iterator (`contextlib.aclosing`) to cancel the call.

        Args:
            timeout_s: as in `complete`.
            decoder: an unused decoder, which shows the caller the usage reported so far if the call is cancelled.

        Raises:
            CallFailed: as `complete`; also if the stream was cut, with the usage reported until then.
            ConfigError: as `complete`.
        """
        deadline = asyncio.get_running_loop().time() + (timeout_s or self.endpoint.timeout_s)
        decoder = decoder or StreamDecoder(unopened=self.quirks.unopened)
        request, headers = self._with_params(replace(request, stream=True))
        while True:
            body = self._body(request)
            try:
                async with contextlib.aclosing(self._stream(body, headers, deadline, decoder)) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except CallFailed as error:
                if decoder.begun or not self._adapts(error.failure, request, body):
                    raise

    async def _stream(
        self, body: Mapping[str, Any], headers: Mapping[str, str], deadline: float, decoder: StreamDecoder
    ) -> AsyncGenerator[str | Completion, None]:
        pieces = self._transport.stream(body, headers, decoder)
        try:
            async with contextlib.aclosing(pieces):
                while (piece := await _next(pieces, deadline)) is not None:
                    if piece:
                        yield piece
                    if decoder.whole:
                        deadline = min(deadline, asyncio.get_running_loop().time() + _USAGE_S)
            if last := decoder.end():
                yield last
        except TimeoutError:
            if not decoder.whole:
                raise _timed_out(decoder.usage) from None
        except CallFailed as error:
            if not decoder.whole or error.failure.kind != "protocol" or error.reported is not None:
                error.usage = error.usage or decoder.usage
                raise self._with_service_message(error, body) from None
        yield self.quirks.learn_from_reply(decoder.finish(), body)

    def _with_service_message(self, error: CallFailed, body: Mapping[str, Any]) -> CallFailed:
        """Add the service's message to the failure, if a response of status 2xx reported an error in its body."""
        if error.reported is None:
            return error
        failure = with_service_message(error.failure, error.reported, self._transport.secrets(body))
        return CallFailed(failure, error.usage, free=error.free)

    def prepare(self) -> None:
        """Load what the first call needs, outside any time limit."""
        _ = self._transport

    @functools.cached_property
    def _transport(self) -> Transport:
        if self.endpoint.client is not None:
            return OpenAITransport(self.endpoint, self._on_headers)
        from focalroute.endpoints.http import Http

        return Http(self.endpoint, self._sessions.session, self._on_headers)

    def _with_params(self, request: Request) -> tuple[Request, Mapping[str, str]]:
        """Add the endpoint's parameters to the request; return it and the headers among them (``extra_headers``)."""
        if not self.endpoint.params and "extra_headers" not in request.params:
            return request, {}
        params = request.params_over(self.endpoint.params)
        headers = params.pop("extra_headers", None) or {}
        return replace(request, params=params), headers

    def _body(self, request: Request) -> dict[str, Any]:
        if request.scored:
            return wire.encode_scored(request, self.endpoint.model)
        return self.quirks.fit(wire.encode(request, self.endpoint.model, self.endpoint.spoken, cap=self._transport.cap))


async def _next(pieces: AsyncIterator[str], deadline: float) -> str | None:
    """Return the next piece, None at the end. Each wait has its own timeout, as one must not span a ``yield``."""
    async with asyncio.timeout_at(deadline):
        return await anext(pieces, None)


def _timed_out(usage: Usage | None = None) -> CallFailed:
    return CallFailed(Failure("timeout", "no whole reply within the time limit"), usage)
