"""The chat completion format, without I/O: requests to JSON, replies and streams (hostile input) to records."""

from focalroute.wire.fields import Token, broken
from focalroute.wire.format import (
    MAX_REPLY_BYTES,
    CapField,
    Completion,
    CompletionChoice,
    Request,
    decode,
    decode_bytes,
    encode,
)
from focalroute.wire.refusals import refusal
from focalroute.wire.stream import StreamDecoder

__all__ = [
    "MAX_REPLY_BYTES",
    "CapField",
    "Completion",
    "CompletionChoice",
    "Request",
    "StreamDecoder",
    "Token",
    "broken",
    "decode",
    "decode_bytes",
    "encode",
    "refusal",
]
