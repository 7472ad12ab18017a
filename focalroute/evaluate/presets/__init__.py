"""The two papers' methods, trained and replayed like the baselines: `rl_focal` and `der`.

`networks` has the networks and learning that both use; live evaluation uses DER's trainer, too.
`focalroute.evaluate.baselines.PRESETS` names both.
"""
