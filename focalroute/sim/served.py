"""One model as it is being served: its switches, its faults still to come, and what its clients have been billed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.sim.faults import BILLED, Fault
from focalroute.sim.models import SimulatedModel, uniforms

_MODEL_SWITCHES = frozenset({"latency_s", "jitter_s", "input_usd_per_1m", "output_usd_per_1m", "verbosity"})


@dataclass(frozen=True, slots=True)
class ModelStats:
    """What the service has counted for one model.

    Attributes:
        calls: requests for it with a valid key, refused and failed ones included.
        prompt_tokens: billed, as is the next.
        completion_tokens: all samples, whether the client stayed to read them or not.
        usd: the sum of all bills, exact.
        cancelled: calls whose client left before the answer was complete.
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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModelStats:
        """From a JSON object whose amount is a decimal string."""
        return cls(**{**values, "usd": Decimal(values["usd"])})


class Served:
    """The state of one served model. Not safe for threads: it belongs to the server's event loop."""

    def __init__(self, model: SimulatedModel) -> None:
        self.model = model
        self.drifted = False
        self.under_way = 0
        self.calls = 0
        self.cancelled = 0
        self._faults: list[tuple[Fault, int]] = []
        self._struck = 0
        self._peak = 0
        self._tokens = [0, 0]
        self._usd = Decimal(0)

    def enter(self) -> None:
        """A call begins."""
        self.calls += 1
        self.under_way += 1
        self._peak = max(self._peak, self.under_way)

    def strike(self) -> Fault | None:
        """The fault that this call meets, if any; the first one in the list that strikes."""
        for i, (fault, struck) in enumerate(self._faults):
            spent = fault.count is not None and struck >= fault.count
            if not spent and self._luck("fault", i) < fault.probability:
                self._faults[i] = (fault, struck + 1)
                self._struck += 1
                return fault
        return None

    def delay_s(self) -> float:
        """How long this call takes."""
        model = self.model
        if not model.latency_s and not model.jitter_s:
            return 0.0
        return max(0.0, model.latency_s + model.jitter_s * (2 * self._luck("delay", 0) - 1))

    def bill(self, prompt_tokens: int, completion_tokens: int, fault: Fault | None) -> Decimal:
        """Charge a call, unless its fault is one that is not charged for; its cost in USD."""
        model = self.model
        cost = (prompt_tokens * model.input_usd_per_1m + completion_tokens * model.output_usd_per_1m) / 1_000_000
        if fault is None or fault.kind in BILLED:
            self._tokens[0] += prompt_tokens
            self._tokens[1] += completion_tokens
            self._usd += cost
        return cost

    def switch(self, values: Mapping[str, Any]) -> None:
        """Change faults, phase, latency, prices or verbosity; all or nothing.

        Raises:
            ConfigError: a switch is unknown or its value is wrong.
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
        """As a JSON object; see `ModelStats`."""
        return {
            "calls": self.calls,
            "prompt_tokens": self._tokens[0],
            "completion_tokens": self._tokens[1],
            "usd": str(self._usd),
            "cancelled": self.cancelled,
            "faults": self._struck,
            "peak": self._peak,
        }

    def _luck(self, *what: object) -> float:
        return uniforms(*what, self.model.seed, self.model.name, self.calls)[0]
