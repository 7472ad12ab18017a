"""Writes JSON in a canonical form, so that equal values have equal texts."""

from __future__ import annotations

import json
import math

_EXACT = 2.0**53  # up to here a float holds every whole number exactly


def parsed(text: str) -> object:
    """Parse a JSON text; strings may hold line breaks and tabs as they are, as models write them.

    Raises:
        ValueError: it is not JSON, or too deeply nested or too long.
    """
    try:
        return json.loads(text, parse_constant=_refuse, strict=False)
    except RecursionError:
        raise ValueError("too deep") from None


def canonical(value: object) -> str:
    """Write the value as JSON: keys in order, no spaces, whole numbers without a fraction.

    Raises:
        ValueError: it cannot be written as JSON.

    >>> canonical({"b": 2.0, "a": [True, None]})
    '{"a":[true,null],"b":2}'
    """
    try:
        text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON ({type(error).__name__})") from None
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value
