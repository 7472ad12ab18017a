"""The two works' own methods as presets, trained and replayed like everything else: ``rl-focal`` and ``der``.

`catalogue` has them by name. `rl_focal` (with `agents`, `heads` and `diversities`) and `der` are the methods;
`recorded` is what they train on, `mlp` and `ppo` are the networks and how they learn.
"""

from __future__ import annotations

__all__: list[str] = []
