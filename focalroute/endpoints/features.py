"""What a query needs of an endpoint, beyond answering with text, and what a service says that it cannot do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from focalroute.core.records import Query

#: Each is a field of `Endpoint`.
Feature = Literal["tools", "images", "json_schema"]

_IMAGES = frozenset(("image_url", "input_image", "image"))
_LONGEST = 2000  # characters of a message that are looked at

# Of the service or its model. A message about the caller's own tools, images or schema must not match: one bad image
# would shut the endpoint to all others.
_SAID: Mapping[Feature, re.Pattern[str]] = {
    "tools": re.compile(
        r"(?:not support|unsupported|that support)[^.]{0,40}\b(?:tools?|function.?call)"
        r"|\b(?:tools?|tool use|function.?calling)\b[^.]{0,20}not (?:supported|enabled|available)"
        r"|\btools?\b[^.]{0,20}requires? --",
        re.IGNORECASE,
    ),
    "images": re.compile(
        r"(?:not support|that support)[^.]{0,20}\b(?:images?\b|image_url|vision|multi-?modal)"
        r"|\b(?:images|image inputs?|image_url|vision) (?:is|are) (?:not (?:supported|enabled|available)|only supp)"
        r"|not a multi-?modal|at most 0 image",
        re.IGNORECASE,
    ),
    "json_schema": re.compile(
        r"(?:not support|unsupported|that support)[^.]{0,40}(?:response_format|json.?schema|structured output)"
        r"|(?:response_format|json.?schema|structured outputs?)[^.]{0,40}not (?:supported|enabled|available)",
        re.IGNORECASE,
    ),
}  # fmt: skip


def needs(query: Query) -> frozenset[Feature]:
    """What a query needs. A structured answer (``answer=``) needs nothing: it can be asked for in words."""
    params, wanted = query.params, query.params.get("response_format")
    found: set[Feature] = set()
    if params.get("tools") or params.get("functions"):
        found.add("tools")
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema":
        found.add("json_schema")
    if any(_has_image(message.get("content")) for message in query.messages):
        found.add("images")
    return frozenset(found)


def _has_image(content: Any) -> bool:
    parts = content if isinstance(content, list | tuple) else ()
    return any(isinstance(part, Mapping) and part.get("type") in _IMAGES for part in parts)


def unsupported(message: str) -> Feature | None:
    """The feature that an error message says the service does not have; None if it says no such thing.

    >>> unsupported("No endpoints found that support tool use."), unsupported("You uploaded an unsupported image.")
    ('tools', None)
    """
    return next((feature for feature, said in _SAID.items() if said.search(message[:_LONGEST])), None)
