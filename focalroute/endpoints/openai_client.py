"""A ready ``AsyncOpenAI`` in place of our own transport, and what both transports share.

Only bytes cross this seam: the library's own readings of them differ between its versions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Failure
from focalroute.endpoints.wire import MAX_REPLY_BYTES, CapField
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import refusal_of
from focalroute.endpoints.wire.stream import StreamDecoder

#: What is called at a service.
CHAT, COMPLETIONS, EMBEDDINGS = "/chat/completions", "/completions", "/embeddings"
#: The fields of ours that the openai library takes by name; all others reach the body through its ``extra_body``.
_BY_NAME = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "n", "logprobs", "top_logprobs"}
_BY_NAME |= {"response_format", "stream", "stream_options", "input", "encoding_format", "prompt", "echo"}
_UNPACKED = {"Accept-Encoding": "identity"}  # so that what is read is as long as what is sent
_OPENAI_HOSTS = ("openai.com", "azure.com")


def cap_field(base_url: str) -> CapField:
    """What a service calls the most tokens of a reply."""
    host = urlsplit(base_url).hostname or ""
    own = any(host == known or host.endswith("." + known) for known in _OPENAI_HOSTS)
    return "max_completion_tokens" if own else "max_tokens"


async def read_all(piece: Callable[[], Awaitable[bytes]], limit: int) -> bytearray:
    """All pieces until an empty one, at most ``limit`` bytes; CallFailed if there are more."""
    body = bytearray()
    while some := await piece():
        body += some
        if len(body) > limit:
            raise protocol_error("the reply is too long")
    return body


class OpenAITransport:
    """A ready ``AsyncOpenAI`` (2.x or 3.x), its own retries switched off. Only bytes cross this seam, piece by piece.

    Nor does it follow redirects for us: with some versions it would take an Azure key along, and always the prompt.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._client = endpoint.client.with_options(max_retries=0)  # ours: the user's own stays as it is
        self._prepare = self._client._prepare_options
        self._client._prepare_options = self._without_redirects
        # loads much code, for which no call's time limit shall pay
        self._create = {
            CHAT: self._client.chat.completions.with_streaming_response.create,
            COMPLETIONS: self._client.completions.with_streaming_response.create,
            EMBEDDINGS: self._client.embeddings.with_streaming_response.create,
        }
        self.cap = cap_field(str(self._client.base_url))

    async def whole(self, path: str, body: Mapping[str, Any]) -> bytearray:
        """The body of the reply."""
        # unless told, the library asks for embeddings in another form
        form = {"encoding_format": "float"} if path == EMBEDDINGS else {}
        async with contextlib.aclosing(self._bytes(path, {**body, **form})) as pieces:
            return await read_all(partial(anext, pieces, b""), MAX_REPLY_BYTES)

    async def stream(self, body: Mapping[str, Any], decoder: StreamDecoder) -> AsyncGenerator[str, None]:
        """The pieces of text of a streamed reply."""
        async with contextlib.aclosing(self._bytes(CHAT, body)) as chunks:
            async for chunk in chunks:
                yield decoder.feed(chunk)
                if decoder.done:
                    return

    async def _bytes(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """The body of the reply in pieces, as they come."""
        known = {name: value for name, value in body.items() if name in _BY_NAME}
        extra = {name: value for name, value in body.items() if name not in _BY_NAME}
        begun, failed = False, None
        try:
            create = self._create[path]
            async with create(**known, extra_body=extra or None, extra_headers=_UNPACKED) as response:
                begun = True
                async for chunk in response.http_response.aiter_raw():
                    if chunk:
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
    return protocol_error(f"the reply was cut short ({type(error).__name__})")


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
        return refusal_of(error.status_code, error.response.headers, error.body, secrets)
    return Failure("protocol", f"no chat completion came back ({name})")
