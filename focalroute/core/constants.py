"""Bounds that more than one package needs to know."""

#: The cost weights (lambda) that policies are trained for; any other is shown as the nearest of them.
COST_WEIGHT_RANGE = (0.003, 4.0)
