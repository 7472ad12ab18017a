"""The faults of simulated models, and the state of a model being served.

This module spoils the bodies of replies; `focalroute.sim.server` breaks connections.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.json_values import is_number
from focalroute.sim.models import SimulatedModel, uniforms

#: Every kind of fault, see `Fault`.
KINDS = (
    "status", "hang", "drip", "cut", "short", "reset", "redirect", "html", "bad_json", "wrong_content_type",
    "empty_choices", "null_content", "nan_logprobs", "no_usage", "wrong_type", "huge", "flood", "bomb", "deep",
    "odd_types", "odd_text", "positive_logprobs", "negative_usage", "duplicates", "outside", "decoy",
)  # fmt: skip

#: The faults after which the service still bills the call, unless `Fault.billed` is set.
BILLED = frozenset(KINDS) - {"status", "reset", "redirect", "html", "flood", "bomb"}

#: The faults that change only a stream's first chunk.
FIRST_ONLY = frozenset(("huge", "decoy"))

_DECOY = 'The question says "the answer is A", which is not for me to follow. The answer is '


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a model fails for a while. The kinds, and what the client sees:

    - "status": an error status (``status``, ``retry_after_s``);
    - "hang": no answer for ``seconds``, then the connection closes;
    - "drip": the right answer, in pieces spread over ``seconds``;
    - "cut": the connection breaks off halfway through the body or stream;
    - "short": the stream (or a body without length) ends politely halfway: no finish_reason, usage or [DONE];
    - "reset": the connection is reset before any answer;
    - "redirect": 307 to ``location``;
    - "html": 200 with an HTML page;
    - "bad_json": JSON that breaks off;
    - "wrong_content_type": the right body as text/plain;
    - "empty_choices": no choices;
    - "null_content": a choice without content;
    - "nan_logprobs": log-probabilities that are NaN;
    - "no_usage": no usage;
    - "wrong_type": a number where the choices should be;
    - "huge": a reply of ``size`` characters;
    - "flood": ``size`` empty characters of a reply without length;
    - "bomb": a small gzip body that unpacks to ``size`` bytes, whatever encoding was asked for;
    - "deep": JSON of lists within lists;
    - "odd_types": every field present, but of a wrong type;
    - "odd_text": lone surrogates, NUL and control characters around the text;
    - "positive_logprobs": log-probabilities above zero;
    - "negative_usage": token counts and a cost below zero;
    - "duplicates": every choice twice, under the same index;
    - "outside": an answer that is none of the choices;
    - "decoy": the right answer after words of the question that name another one.

    Attributes:
        kind: one of these.
        probability: the probability that it strikes a call.
        count: the most times it strikes; None: until it is switched off.
        status: for "status".
        retry_after_s: for "status": sent as Retry-After; None: not sent.
        seconds: for "hang" and "drip".
        location: for "redirect".
        size: for "huge", "flood" and "bomb".
        billed: whether the service still bills the call; None: as usual for its kind (`BILLED`).
    """

    kind: str
    probability: float = 1.0
    count: int | None = None
    status: int = 503
    retry_after_s: float | None = None
    seconds: float = 30.0
    location: str = "http://redirected.invalid/v1/chat/completions"
    size: int = 8_000_000
    billed: bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"Fault: kind: unknown fault {self.kind!r}; use one of {', '.join(KINDS)}")
        most = 1_000_000_000
        bounds = {
            "probability": (0, 1), "count": (0, most), "status": (400, 599), "retry_after_s": (0, most),
            "seconds": (0, most), "size": (1, most),
        }  # fmt: skip
        for field, (low, high) in bounds.items():
            value = getattr(self, field)
            if value is None and field in ("count", "retry_after_s"):
                continue
            if not is_number(value) or not low <= value <= high:
                raise ConfigError(f"Fault {self.kind!r}: {field}: give a number from {low} to {high}, got {value!r}")

    @property
    def bills(self) -> bool:
        """Whether the service bills a call that the fault strikes."""
        return self.kind in BILLED if self.billed is None else self.billed


def _choices(payload: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> str:
    """Change the message or delta of every choice; return the payload as JSON."""
    for choice in payload.get("choices") or ():
        change(choice.get("message") or choice.get("delta") or {})
    return json.dumps(payload)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change every scalar in a JSON value."""
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_each(item, change) for item in value]
    return change(value)


def _logprobs(payload: dict[str, Any], change: Callable[[float], float]) -> str:
    for choice in payload.get("choices") or ():
        if "logprobs" in choice:
            choice["logprobs"] = _each(choice["logprobs"], lambda v: change(v) if isinstance(v, float) else v)
    return json.dumps(payload)


def _negative_usage(payload: dict[str, Any], _: Fault) -> str:
    if isinstance(payload.get("usage"), dict):
        payload["usage"] = _each(payload["usage"], lambda count: -1) | {"cost": -0.5}
    return json.dumps(payload)


def _odd(value: Any) -> Any:
    return [value] if isinstance(value, str) else str(value)


def _odd_text(payload: dict[str, Any], _: Fault) -> str:
    return _choices(payload, lambda part: part.update(content=f"\ud800\0{part.get('content') or ''}\x1b[2J\udfff"))


def _outside(part: dict[str, Any]) -> None:
    if part.get("content"):
        part["content"] = "Pluto. "


def _decoy(payload: dict[str, Any], _: Fault) -> str:
    return _choices(payload, lambda part: part.update(content=_DECOY + (part.get("content") or "")))


def _html(_: dict[str, Any], __: Fault) -> str:
    return "<!DOCTYPE html><html><head><title>Bad gateway</title></head><body><h1>Bad gateway</h1></body></html>"


def _huge(payload: dict[str, Any], fault: Fault) -> str:
    return _choices(payload, lambda part: part.update(content="All work and no play. " * (fault.size // 22 + 1)))


#: The faults of bodies. Each function returns the text to send for the payload of a reply or of one chunk.
SPOILED: Mapping[str, Callable[[dict[str, Any], Fault], str]] = MappingProxyType({
    "html": _html,
    "bad_json": lambda payload, _: json.dumps(payload)[:-12],
    "wrong_content_type": lambda payload, _: json.dumps(payload),
    "empty_choices": lambda payload, _: json.dumps(payload | {"choices": []}),
    "null_content": lambda payload, _: _choices(payload, lambda part: part.update(content=None)),
    "nan_logprobs": lambda payload, _: _logprobs(payload, lambda _: math.nan),
    "no_usage": lambda payload, _: json.dumps({key: value for key, value in payload.items() if key != "usage"}),
    "wrong_type": lambda payload, _: json.dumps(payload | {"choices": 42}),
    "huge": _huge,
    "deep": lambda _, __: "[" * 100_000 + "]" * 100_000,
    "odd_types": lambda payload, _: json.dumps({key: _each(value, _odd) for key, value in payload.items()}),
    "odd_text": _odd_text,
    "positive_logprobs": lambda payload, _: _logprobs(payload, lambda value: 0.5 - value),
    "negative_usage": _negative_usage,
    "duplicates": lambda payload, _: json.dumps(payload | {"choices": 2 * payload.get("choices", [])}),
    "outside": lambda payload, _: _choices(payload, _outside),
    "decoy": _decoy,
})  # fmt: skip


_MODEL_SWITCHES = frozenset({"latency_s", "jitter_s", "input_usd_per_1m", "output_usd_per_1m", "verbosity"})


@dataclass(frozen=True, slots=True)
class ModelStats:
    """The service's counts for one model.

    Attributes:
        calls: requests with a valid key, including refused and failed ones.
        prompt_tokens: billed prompt tokens.
        completion_tokens: billed tokens of all samples, even if the client did not stay to read them.
        usd: the exact sum of all bills.
        cancelled: calls whose client disconnected before the answer was complete.
        faults: calls struck by a fault.
        peak: the most calls under way at a time.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: Decimal = Decimal(0)
    cancelled: int = 0
    faults: int = 0
    peak: int = 0


class ServedModel:
    """The state of one served model. Not thread-safe: it belongs to the server's event loop."""

    def __init__(self, model: SimulatedModel) -> None:
        self.model = model
        self.drifted = False
        self.under_way = 0
        self.counts: dict[str, Any] = dataclasses.asdict(ModelStats())
        self._faults: list[tuple[Fault, int]] = []

    def enter(self) -> None:
        """Count a call that begins."""
        self.under_way += 1
        self.counts["calls"] += 1
        self.counts["peak"] = max(self.counts["peak"], self.under_way)

    def strike(self) -> Fault | None:
        """Draw the fault that strikes this call: the first in the list whose draw succeeds; None: none."""
        for i, (fault, struck) in enumerate(self._faults):
            spent = fault.count is not None and struck >= fault.count
            if not spent and self._luck("fault", i) < fault.probability:
                self._faults[i] = (fault, struck + 1)
                self.counts["faults"] += 1
                return fault
        return None

    def delay_s(self) -> float:
        """How long this call takes."""
        model = self.model
        if not model.latency_s and not model.jitter_s:
            return 0.0
        return max(0.0, model.latency_s + model.jitter_s * (2 * self._luck("delay", 0) - 1))

    def bill(self, prompt_tokens: int, completion_tokens: int, fault: Fault | None) -> Decimal:
        """Bill a call, unless its fault is not billed; return its cost in USD."""
        prompt, completion = self.model.price
        cost = (prompt_tokens * prompt + completion_tokens * completion) / 1_000_000
        if fault is None or fault.bills:
            self.counts["prompt_tokens"] += prompt_tokens
            self.counts["completion_tokens"] += completion_tokens
            self.counts["usd"] += cost
        return cost

    def switch(self, values: Mapping[str, Any]) -> None:
        """Change faults, drift, latency, prices or verbosity, all or none.

        Raises:
            ConfigError: a switch is unknown or its value is invalid.
        """
        unknown = sorted(set(values) - _MODEL_SWITCHES - {"faults", "drifted"})
        if unknown:
            known = ", ".join(sorted(_MODEL_SWITCHES | {"faults", "drifted"}))
            raise ConfigError(f"{unknown[0]}: unknown switch; use one of {known}")
        try:
            faults = [(Fault(**fault), 0) for fault in values.get("faults", ())]
            changes = {name: value for name, value in values.items() if name in _MODEL_SWITCHES}
            model = dataclasses.replace(self.model, **changes)
        except TypeError as error:
            raise ConfigError(f"model {self.model.name!r}: {error}") from None
        self.model = model
        self.drifted = bool(values.get("drifted", self.drifted))
        if "faults" in values:
            self._faults = faults

    def stats(self) -> dict[str, Any]:
        """The counts as a JSON object; see `ModelStats`."""
        return {**self.counts, "usd": str(self.counts["usd"])}

    def _luck(self, *what: object) -> float:
        return uniforms(*what, self.model.seed, self.model.name, self.counts["calls"])[0]
