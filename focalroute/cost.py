"""Usage x price -> money, and the guard that keeps it within the budget.

Money is exact: `decimal.Decimal` USD. What is not known is None, never zero.
"""

from __future__ import annotations

import functools
import json
import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from focalroute.config import Budget, Endpoint, usd
from focalroute.errors import BudgetExceeded, ConfigError
from focalroute.records import CostSource, Usage
from focalroute.wire import Request

__all__ = ["Bill", "BudgetGuard", "Purse", "cost_of", "total", "typical_cost", "upper_bound"]

_MILLION = Decimal(1_000_000)
_PER_MESSAGE = 16  # tokens a chat template may add around one message, generously
_PER_REQUEST = 64
_PER_MEDIA_PART = 4096  # tokens an image, audio or file part may count, generously


def cost_of(usage: Usage, endpoint: Endpoint) -> tuple[Decimal | None, CostSource]:
    """What the usage costs at this endpoint: the provider's own figure, else price x tokens, else unknown."""
    if usage.cost_usd is not None:
        return usage.cost_usd, "provider"
    price = endpoint.price
    if price is None:
        return None, "unknown"
    cost = (
        (usage.prompt_tokens - usage.cached_tokens) * price.prompt
        + usage.cached_tokens * price.cached
        + usage.completion_tokens * price.completion
    )
    return cost / _MILLION, "price"


def typical_cost(endpoint: Endpoint) -> float | None:
    """USD of a typical call by the price list, to compare endpoints before anything was seen; None if unknown."""
    price = endpoint.price
    return None if price is None else float(200 * price.prompt + 100 * price.completion) / 1e6


def total(costs: Iterable[Decimal | None]) -> Decimal | None:
    """The sum; None if any part is unknown."""
    known = list(costs)
    return None if any(cost is None for cost in known) else sum((c for c in known if c is not None), Decimal(0))


def upper_bound(request: Request, endpoint: Endpoint) -> Decimal | None:
    """The most one call can cost: every byte of the prompt a token, every allowed token generated, n times.

    Of the parameters every byte counts too: tools and schemas are part of the prompt. None where the price, or the
    number of tokens it may generate, is unknown.
    """
    params = {**endpoint.params, **request.params}
    generated = _most_generated(params, request)
    price = endpoint.price
    if price is None or generated is None:
        return None
    prompt = (
        _PER_REQUEST
        + _json_tokens(params)
        + _json_tokens(request.choices)
        + sum(map(_message_tokens, request.messages))
    )
    return (prompt * max(price.prompt, price.cached) + generated * price.completion) / _MILLION


def _most_generated(params: Mapping[str, Any], request: Request) -> int | None:
    caps = [params[name] for name in ("max_tokens", "max_completion_tokens") if name in params] or [request.max_tokens]
    samples = params.get("n", request.n)
    return max(caps) * samples if all(isinstance(count, int) for count in (*caps, samples)) else None


def _message_tokens(message: Mapping[str, Any]) -> int:
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}  # tool calls, a name
    return _PER_MESSAGE + _content_tokens(message.get("content")) + _json_tokens(rest)


def _json_tokens(value: object) -> int:
    return len(json.dumps(value, default=str)) if value else 0


def _content_tokens(content: Any) -> int:
    if isinstance(content, str):
        return len(content.encode(errors="surrogatepass"))
    if not isinstance(content, Iterable):
        return 0
    parts = (part for part in content if isinstance(part, Mapping))
    return sum(_content_tokens(part["text"]) if "text" in part else _PER_MEDIA_PART for part in parts)


@dataclass(frozen=True, slots=True)
class Bill:
    """What one attempt at one endpoint consumed and cost."""

    endpoint: str
    usage: Usage | None
    cost: Decimal | None
    source: CostSource

    @staticmethod
    def total(bills: Sequence[Bill]) -> tuple[Usage | None, Decimal | None, CostSource]:
        """Several attempts added up; the source is the least certain of theirs."""
        usages = [bill.usage for bill in bills if bill.usage is not None]
        usage = functools.reduce(operator.add, usages) if usages else None
        source: CostSource = min((bill.source for bill in bills), key=_CERTAINTY.index, default="price")
        return usage, total(bill.cost for bill in bills), source


_CERTAINTY: Sequence[CostSource] = ("unknown", "reserved", "price", "provider")


def _limit(budget: Budget | None, name: str) -> Decimal | None:
    amount = getattr(budget, name, None)
    return None if amount is None else usd(amount, name)


class BudgetGuard:
    """Keeps all asks together within ``Budget.usd_total``: spent + reserved never passes it. Thread-safe."""

    def __init__(self, budget: Budget | None, endpoints: Iterable[Endpoint], spent: Decimal) -> None:
        self._unpriced = [endpoint.name for endpoint in endpoints if endpoint.price is None]
        if budget is not None:
            if not isinstance(budget, Budget):
                raise ConfigError(f"budget: give a Budget, such as Budget(usd_total=20), got {type(budget).__name__}")
            self._require_prices("budget")
        self.limit = _limit(budget, "usd_total")
        self.spent = spent
        self.reserved = Decimal(0)
        self._per_ask = _limit(budget, "max_usd_per_ask")
        self._lock = threading.Lock()

    def purse(self, max_usd: Decimal | float | str | None) -> Purse:
        """What one ask may spend: the smaller of its own cap and the budget's.

        Raises:
            ConfigError: it is not an amount, or cannot be kept because a price is unknown.
        """
        own = None if max_usd is None else usd(max_usd, "max_usd")
        if own is not None:
            self._require_prices("max_usd")
        caps = [cap for cap in (own, self._per_ask) if cap is not None]
        return Purse(self, min(caps, default=None))

    def _require_prices(self, limit: str) -> None:
        if self._unpriced:
            raise ConfigError(
                f"{limit}: cannot be kept, the price of {', '.join(self._unpriced)} is unknown; "
                "set input_usd_per_1m and output_usd_per_1m"
            )

    @property
    def available(self) -> Decimal | None:
        """What is left of the total limit, USD; None: no limit."""
        with self._lock:
            return None if self.limit is None else self.limit - self.spent - self.reserved

    def reserve(self, amount: Decimal) -> bool:
        """Hold ``amount`` back; False, and nothing held, if it does not fit."""
        with self._lock:
            if self.limit is not None and self.spent + self.reserved + amount > self.limit:
                return False
            self.reserved += amount
            return True

    def settle(self, reserved: Decimal, cost: Decimal) -> None:
        """Turn a reservation into what was really spent (0: release it)."""
        with self._lock:
            self.reserved -= reserved
            self.spent += cost


class Purse:
    """One ask's money: its own cap within the guard's, and every bill. Used by one event loop."""

    def __init__(self, guard: BudgetGuard, cap: Decimal | None) -> None:
        self._guard = guard
        self.cap = cap
        self.spent = Decimal(0)
        self.reserved = Decimal(0)
        self.bills: list[Bill] = []

    @property
    def limited(self) -> bool:
        """Whether any limit holds at all."""
        return self.cap is not None or self._guard.limit is not None

    def fits(self, amount: Decimal) -> bool:
        """Whether ``amount`` more could be reserved now."""
        return self._fits_cap(amount) and ((left := self._guard.available) is None or amount <= left)

    def _fits_cap(self, amount: Decimal) -> bool:
        left = self._cap_left
        return left is None or amount <= left

    @property
    def _cap_left(self) -> Decimal | None:
        return None if self.cap is None else self.cap - self.spent - self.reserved

    @property
    def share_left(self) -> float:
        """Share of the cap not yet spent nor reserved; 1 without a cap."""
        return 1.0 if self.cap is None else max(0.0, float(1 - (self.spent + self.reserved) / self.cap))

    def reserve(self, amount: Decimal) -> bool:
        """Hold ``amount`` back from both; False, and nothing held, if it does not fit either."""
        if not self._fits_cap(amount) or not self._guard.reserve(amount):
            return False
        self.reserved += amount
        return True

    def settle(self, reserved: Decimal, bill: Bill) -> None:
        """Turn a reservation into what was really spent."""
        cost = bill.cost or Decimal(0)
        self.bills.append(bill)
        self.reserved -= reserved
        self.spent += cost
        self._guard.settle(reserved, cost)

    def exceeded(self) -> BudgetExceeded:
        """The error that says which limit left nothing affordable."""
        left, left_in_all = self._cap_left, self._guard.available
        if self.cap is not None and left is not None and (left_in_all is None or left <= left_in_all):
            return BudgetExceeded(
                f"no endpoint is affordable within {self.cap:f} USD for this ask (max_usd, or the budget's "
                "max_usd_per_ask); raise it, lower max_tokens or ask a cheaper pool",
                limit=self.cap, spent=self.spent, reserved=self.reserved,
            )  # fmt: skip
        limit = self._guard.limit or Decimal(0)
        return BudgetExceeded(
            f"no endpoint is affordable within what is left of usd_total = {limit:f} USD; raise it to go on",
            limit=limit, spent=self._guard.spent, reserved=self._guard.reserved,
        )  # fmt: skip
