"""Evaluation on recorded answers: what would this policy, and every honest baseline, have scored and paid?

`outcomes` reads an outcome log, `table` joins it with the pool, `replay` plays a strategy through it (answer, reveal,
learn), `serving` is focalroute itself as a strategy, `lineup` lists the baselines (`singles`, `votes`, `subsets`,
<<<<<<< HEAD
`textual`; `training` is what they may learn from), `points` plays focalroute at its operating points, `metrics`
compares, `report` and `command` put it together, `html` shows it.
=======
`textual`; `training` is what they may learn from), `metrics` compares, `report` and `command` put it together.
`recording` and `train_command` train on a log.
>>>>>>> 7a1e105 (Add focalroute train)
"""

from __future__ import annotations

__all__: list[str] = []
