"""Inputs that are nearly right: bytes changed at random, and JSON changed where it stays JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

__all__ = ["mutated", "mutated_json"]

#: What breaks parsers: the ends of numbers, half-finished escapes, other types, words that mean something to a reader.
PIECES: Sequence[bytes] = (
    b"null", b"true", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"-0.0", b"9" * 40, b"9" * 5000, b"1e-400", b'""',
    b"{}", b"[]", b"[" * 200, b"{" * 3, b'"', b"\\", b"\\ud800", b"\\u0000", b"\0", b"\xff\xfe", b"\xc3",
    b"\xf0\x9f\x98", b"\r", b"\n", b"\r\n\r\n", b"data: ", b"data:\n\n", b"data: [DONE]\n\n", b": x\n", b"answer is ",
    b"The answer: B", b"<think>", b"</think>", b"\\boxed{", b"text{", "“”".encode(), "\u0300\u0316".encode(),
    "\ufdfa".encode(), b"(A)", b"**B**", b"A or C", b"not ", b",111", b"e+5", b"=", b"# ",
)  # fmt: skip
VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -0.0, 0.5, 1e308, float("nan"), float("inf"), -9999.0, "", "A",
    "B", "x" * 300, "\ud800", "\0", "NaN", "1e999", "-1", [], {}, [[]], [{}], {"": None}, {"index": 0}, ["A"],
    [None] * 3, {"content": "A"}, {"error": {"code": 500}},
)  # fmt: skip


def mutated(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """One to four changes of bytes: flipped, cut, copied, doubled, a piece put in, or another input's end put on."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 2, 8, 64, 512)))
        match rng.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = changed[at:end] * rng.choice((1, 2, 20))
            case 4:
                del changed[at:]
            case 5 if others:
                other = rng.choice(others)
                changed[at:] = other[rng.randrange(len(other) + 1) :]
            case 6:
                changed[at:end] = rng.choice(PIECES)
            case _:
                changed[at:at] = rng.choice(PIECES)
    return bytes(changed)


def mutated_json(value: Any, rng: random.Random) -> Any:
    """One to three changes of parts of a JSON value: replaced, removed, doubled, or swapped with another part."""
    changed = _copy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(changed))
        if not places:
            return _copy(rng.choice(VALUES))
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder[key:key] = [holder[key]] * rng.choice((1, 3, 30))
            case 2 if isinstance(holder, dict):
                holder[rng.choice(("", "x", "index", "error", key + "s"))] = holder.pop(key)
            case 3:
                other, name = rng.choice(places)
                if _has(other, name):
                    holder[key] = _copy(other[name])
            case _:
                holder[key] = _copy(rng.choice(VALUES))
    return changed


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> Any:
    """(container, key) of every part."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, part in inner:
        yield value, key
        yield from _places(part)
