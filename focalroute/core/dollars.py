"""Money as it is printed: dollars in plain digits, never in powers of ten."""

from __future__ import annotations

from decimal import Decimal


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
