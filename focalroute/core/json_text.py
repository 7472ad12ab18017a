"""JSON to Python's values, quickly."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def parse(text: str | bytes | bytearray) -> Any:
    """Parse JSON with pydantic's parser, in a third of the time of Python's own, which takes what pydantic's does not.

    Raises:
        ValueError: it is not JSON; RecursionError: it is nested too deeply.

    >>> parse(b'{"a": [1, 0.5]}')
    {'a': [1, 0.5]}
    """
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)
