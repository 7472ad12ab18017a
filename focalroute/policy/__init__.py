"""Policies and how they serve: bundles of two small networks, and rules.

`publish` writes bundles, `bundle` loads them, `slot` holds the one that serves; `decider` turns logits into a decision
and into a posterior over candidates. `baselines`, `routers` and `sequential` have the rules that serve by a name
(``policy="plurality"``), `references` resolves names, `fallback` serves when no bundle can.
"""
