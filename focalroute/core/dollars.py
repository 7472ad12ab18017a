"""Parses amounts of money, and prints dollars in plain digits, never in powers of ten."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow

from focalroute.core.errors import ConfigError

#: The periods that a limit may be for, in seconds.
PERIODS: Mapping[str, int] = {"minute": 60, "hour": 3600, "day": 86_400}

#: Money as the caller may write it. Once validated it is a Decimal, exact as written; the package reads it through
#: `Endpoint.price` and `parse_usd`.
Amount = Decimal | float | str

#: Amounts are computed in this context; the program's own may round to a few digits, or raise on inexact results.
MONEY = Context(prec=28, rounding=ROUND_HALF_EVEN, traps=[DivisionByZero, InvalidOperation, Overflow])

_NUMBERS = (Decimal, int, float, str)
_MAX_AMOUNT_LENGTH, _MAX_AMOUNT_DIGITS, _MAX_AMOUNT_EXPONENT = 64, 40, 24
_MOST_STATED = Decimal(100_000)
_MOST_DECIMALS = 30  # "0e-999999999" would be printed with all its zeros
_PRINTABLE_BITS = 1000  # Python refuses to print integers of thousands of digits


class Dollars(Decimal):
    """A `Decimal` of USD that prints in plain digits: 0.0000006, where a Decimal prints 6E-7."""

    __slots__ = ()

    def __str__(self) -> str:
        return super().__format__("f")

    def __format__(self, spec: str, /) -> str:  # type: ignore[override]
        return super().__format__(spec or "f")


def dollars(usd: Decimal | None) -> str:
    """Write an amount for people, to three digits below a dollar: "$0.00123", "$12.50", or "unknown"."""
    if usd is None:
        return "unknown"
    whole, _, cents = f"{usd:.{max(2, 2 - usd.adjusted())}f}".partition(".")
    return f"${whole}.{cents.rstrip('0').ljust(2, '0')}"


def parse_decimal(amount: object) -> Decimal | None:
    """Return a finite number exactly as written; None if it is something else or of an implausible size.

    A number has at most 40 digits and lies between 1e-24 and 1e24, or is 0, so that results stay small and exact.
    ``1_000``, which Python reads as 1000, is refused.
    """
    if isinstance(amount, bool) or not isinstance(amount, _NUMBERS):
        return None
    try:
        text = str(amount)
        value = Decimal(text) if len(text) <= _MAX_AMOUNT_LENGTH and "_" not in text else None
    except (InvalidOperation, ValueError):
        return None
    if value is None or not value.is_finite() or len(value.as_tuple().digits) > _MAX_AMOUNT_DIGITS:
        return None
    return value if not value or abs(value.adjusted()) <= _MAX_AMOUNT_EXPONENT else None


def stated_usd(amount: object, most: Decimal = _MOST_STATED) -> Decimal | None:
    """Return a cost stated by a service, exactly as written; None if it is not a plausible one."""
    value = parse_decimal(amount)
    if value is None or not 0 <= value <= most:
        return None
    exponent = value.as_tuple().exponent
    return value if isinstance(exponent, int) and exponent >= -_MOST_DECIMALS else None


def positive_usd(amount: object) -> Decimal:
    """Return a positive amount of USD, exact as written; ValueError if it is not one."""
    value = parse_decimal(amount)
    if value is None or value <= 0:
        raise ValueError("give a positive amount of USD")
    return value


def parse_usd(amount: object, field: str) -> Decimal:
    """Return a positive amount of USD, exact as written; ConfigError naming ``field`` if it is not one."""
    try:
        return positive_usd(amount)
    except ValueError as error:
        huge = isinstance(amount, int) and amount.bit_length() > _PRINTABLE_BITS
        raise ConfigError(f"{field}: {error}, got {'a huge number' if huge else repr(amount)[:60]}") from None


def parse_usd_per_period(limits: object) -> dict[str, Decimal]:
    """Return period -> USD; ConfigError if it is anything else."""
    if not isinstance(limits, Mapping) or not limits.keys() <= PERIODS.keys():
        raise ConfigError('give USD for each "minute", "hour" or "day", such as {"hour": 1, "day": 10}')
    return {str(period): parse_usd(amount, str(period)) for period, amount in limits.items()}


def parse_usd_per_tag(limits: object) -> dict[str, Decimal | dict[str, Decimal]]:
    """Return tag -> USD, or USD per period; ValueError if it is anything else."""
    if not isinstance(limits, Mapping) or not all(isinstance(tag, str) and tag for tag in limits):
        raise ValueError('give USD for each tag, such as {"team-a": 5, "team-b": {"day": 1}}')
    parsed: dict[str, Decimal | dict[str, Decimal]] = {}
    for tag, limit in limits.items():
        if isinstance(limit, Mapping) and limit:
            parsed[tag] = parse_usd_per_period(limit)
        else:
            parsed[tag] = parse_usd(limit, tag)
    return parsed
