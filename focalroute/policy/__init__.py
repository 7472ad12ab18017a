"""Serving: bundles of two small networks in, decisions and answers out.

`bundle` loads what `publish` wrote, `slot` holds the one that serves; `decider` turns its logits into whom to ask
and into a posterior over candidates. `baselines` and `sequential` have the rules that serve by a name
(``policy="plurality"``), `references` says what such a name means, `fallback` serves when no bundle can.
"""
