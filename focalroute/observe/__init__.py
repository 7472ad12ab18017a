"""Turns the outcomes of past queries into the policies' input for the next one.

    outcome -> Window -> PoolStats ─┐
    query -> text features ─────────┴─> AskView -> Observation (to the Decider), Evidence (to the Fusion)

`layout` names every number in these; `observation` and `pool_stats` compute the numbers, for serving and for training.
"""
