"""The two works' own methods, trained and replayed like everything else: `rl_focal` and `der`.

Live evaluation uses DER's trainer, too; `networks` is what both learn with.
`focalroute.evaluate.baselines.PRESETS` names both.
"""
