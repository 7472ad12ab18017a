"""Bounds that more than one package needs to know."""

#: The prices of money (lambda) that policies are trained for; any other is shown as the nearest of them.
PRICE_RANGE = (0.003, 4.0)
