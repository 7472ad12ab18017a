"""The two works' own methods, trained and replayed like everything else: `rl_focal` and `der`.

`agents` are RL-Focal's networks, `diversities` what they see of a pool; `der_training` is DER's trainer, which live
evaluation uses, too; `networks` is what all of them learn with. `focalroute.evaluate.baselines.PRESETS` names both.
"""
