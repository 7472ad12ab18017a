"""Parses JSON quickly."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def parse(text: str | bytes | bytearray) -> Any:
    """Parse JSON with pydantic's parser, three times as fast as Python's, which parses what pydantic's refuses.

    Raises:
        ValueError: it is not JSON; RecursionError: it is nested too deeply.

    >>> parse(b'{"a": [1, 0.5]}')
    {'a': [1, 0.5]}
    """
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)
