"""Amounts of money as users write them, checked and made exact."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from focalroute.core.errors import ConfigError

#: The periods that a limit may be for, in seconds.
PERIODS: Mapping[str, int] = {"minute": 60, "hour": 3600, "day": 86_400}


def usd(amount: object, field: str) -> Decimal:
    """A positive amount of USD, exact as written; ConfigError naming ``field`` if it is not one."""
    value = decimal_of(amount)
    if value is None or value <= 0:
        raise ConfigError(f"{field}: give a positive amount of USD, got {amount!r}")
    return value


def decimal_of(amount: object) -> Decimal | None:
    """A finite number as it would be written; None if it is none."""
    if isinstance(amount, bool) or not isinstance(amount, Decimal | int | float | str):
        return None
    try:
        value = Decimal(str(amount))
    except (InvalidOperation, ValueError):
        return None
    return value if value.is_finite() else None


def per_period(given: object) -> dict[str, Decimal]:
    """Period -> USD; ValueError (a ConfigError, where it is about an amount) if it is anything else."""
    if not isinstance(given, Mapping) or not given.keys() <= PERIODS.keys():
        raise ValueError('give USD for each "minute", "hour" or "day", such as {"hour": 1, "day": 10}')
    return {str(period): usd(amount, str(period)) for period, amount in given.items()}


def per_tag(given: object) -> dict[str, Decimal | dict[str, Decimal]]:
    """Tag -> USD, or USD per period; ValueError if it is anything else."""
    if not isinstance(given, Mapping) or not all(isinstance(tag, str) and tag for tag in given):
        raise ValueError('give USD for each tag, such as {"team-a": 5, "team-b": {"day": 1}}')
    return {tag: per_period(limit) if isinstance(limit, Mapping) else usd(limit, tag) for tag, limit in given.items()}
