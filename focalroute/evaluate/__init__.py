"""Evaluation on recorded answers: the accuracy and cost that a policy and the baselines would have had.

`outcomes` reads an outcome log, `table` joins it with the pool, `replay` runs a strategy through it (answer, reveal,
learn), `serving` is focalroute itself as a strategy, `baselines` and `votes` are the baselines, `playing` runs them
all, `metrics` compares them, `report` makes the `eval_result`, and `eval_page` its page. `training` trains on a log.
"""
