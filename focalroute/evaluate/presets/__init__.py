"""The two works' own methods, trained and replayed like everything else: `rl_focal` and `der`.

`diversities` are what RL-Focal's agents see of a pool; live evaluation uses DER's trainer, too; `networks` is what all
of them learn with. `focalroute.evaluate.baselines.PRESETS` names both.
"""
