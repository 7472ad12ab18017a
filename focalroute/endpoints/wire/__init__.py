"""The formats of chat completions and embeddings, without I/O: requests to JSON, replies (hostile input) to records."""

from focalroute.endpoints.wire.embeddings import Embedded, decode_embeddings, encode_texts
from focalroute.endpoints.wire.fields import Token, broken
from focalroute.endpoints.wire.format import (
    MAX_REPLY_BYTES,
    CapField,
    Completion,
    CompletionChoice,
    Request,
    decode,
    decode_bytes,
    encode,
)
from focalroute.endpoints.wire.refusals import refusal
from focalroute.endpoints.wire.scored import decode_scored, encode_scored
from focalroute.endpoints.wire.stream import StreamDecoder

__all__ = [
    "MAX_REPLY_BYTES",
    "CapField",
    "Completion",
    "CompletionChoice",
    "Embedded",
    "Request",
    "StreamDecoder",
    "Token",
    "broken",
    "decode",
    "decode_bytes",
    "decode_embeddings",
    "decode_scored",
    "encode",
    "encode_scored",
    "encode_texts",
    "refusal",
]
