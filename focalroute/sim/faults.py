"""Everything that can go wrong with a simulated model, in one table, and how a body is spoiled.

The faults of the connection itself are acted out in `focalroute.sim.server`; those of the body are here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from focalroute.errors import ConfigError

__all__ = ["BILLED", "KINDS", "SPOILED", "Fault"]

#: Each kind of fault and what the client meets.
KINDS: Mapping[str, str] = MappingProxyType({
    "status": "an error status (`status`, `retry_after_s`)",
    "hang": "no answer for `seconds`, then the connection closes",
    "drip": "the right answer, in pieces spread over `seconds`",
    "cut": "the connection breaks off halfway through the body or stream",
    "short": "the stream (or a body without length) ends politely halfway: no finish_reason, usage or [DONE]",
    "reset": "the connection is reset before any answer",
    "redirect": "307 to `location`",
    "html": "200 with an HTML page",
    "bad_json": "JSON that breaks off",
    "wrong_content_type": "the right body as text/plain",
    "empty_choices": "no choices",
    "null_content": "a choice without content",
    "nan_logprobs": "log-probabilities that are NaN",
    "no_usage": "no usage",
    "wrong_type": "a number where the choices should be",
    "huge": "a reply of `size` characters",
})  # fmt: skip

#: The faults after which the service bills the call all the same.
BILLED = frozenset(KINDS) - {"status", "reset", "redirect", "html"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a model fails for a while.

    Attributes:
        kind: a key of `KINDS`.
        probability: of meeting it in one call.
        count: how many times it strikes at most; None: until it is switched off.
        status: for "status".
        retry_after_s: for "status": sent as Retry-After; None: not sent.
        seconds: for "hang" and "drip".
        location: for "redirect".
        size: for "huge", characters.
    """

    kind: str
    probability: float = 1.0
    count: int | None = None
    status: int = 503
    retry_after_s: float | None = None
    seconds: float = 30.0
    location: str = "http://redirected.invalid/v1/chat/completions"
    size: int = 8_000_000

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"Fault: kind: unknown fault {self.kind!r}; use one of {', '.join(KINDS)}")
        checks = {
            "probability": 0 <= self.probability <= 1,
            "count": self.count is None or self.count >= 0,
            "status": 400 <= self.status <= 599,
            "retry_after_s": self.retry_after_s is None or 0 <= self.retry_after_s < math.inf,
            "seconds": 0 <= self.seconds < math.inf,
            "size": 0 < self.size <= 1_000_000_000,
        }
        for field, right in checks.items():
            if not right:
                raise ConfigError(f"Fault {self.kind!r}: {field}: {getattr(self, field)!r} is out of range")

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return dataclasses.asdict(self)


def _choices(payload: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> str:
    """Change the message or delta of every choice."""
    for choice in payload.get("choices") or ():
        change(choice.get("message") or choice.get("delta") or {})
    return json.dumps(payload)


def _nan_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nan_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nan_floats(item) for item in value]
    return math.nan if isinstance(value, float) else value


def _nan(payload: dict[str, Any], _: Fault) -> str:
    for choice in payload.get("choices") or ():
        if "logprobs" in choice:
            choice["logprobs"] = _nan_floats(choice["logprobs"])
    return json.dumps(payload)


def _html(_: dict[str, Any], __: Fault) -> str:
    return "<!DOCTYPE html><html><head><title>Bad gateway</title></head><body><h1>Bad gateway</h1></body></html>"


def _huge(payload: dict[str, Any], fault: Fault) -> str:
    return _choices(payload, lambda said: said.update(content="All work and no play. " * (fault.size // 22 + 1)))


#: The faults of the body: the payload (of a reply, or of one chunk of a stream) as it is sent.
SPOILED: Mapping[str, Callable[[dict[str, Any], Fault], str]] = MappingProxyType({
    "html": _html,
    "bad_json": lambda payload, _: json.dumps(payload)[:-12],
    "wrong_content_type": lambda payload, _: json.dumps(payload),
    "empty_choices": lambda payload, _: json.dumps(payload | {"choices": []}),
    "null_content": lambda payload, _: _choices(payload, lambda said: said.update(content=None)),
    "nan_logprobs": _nan,
    "no_usage": lambda payload, _: json.dumps({key: value for key, value in payload.items() if key != "usage"}),
    "wrong_type": lambda payload, _: json.dumps(payload | {"choices": 42}),
    "huge": _huge,
})  # fmt: skip
