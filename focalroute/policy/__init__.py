"""Serving: bundles of two small networks in, decisions and answers out.

`bundle` loads what `publish` wrote, `slot` holds the one that serves; `decider` turns its logits into whom to ask,
`fusion` into a posterior over candidates. `named` has the rules that serve by a name (``policy="plurality"``),
`fallback` serves when no bundle can.
"""

from __future__ import annotations

__all__: list[str] = []
