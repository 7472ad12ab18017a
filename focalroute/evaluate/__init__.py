"""Evaluation on recorded answers: what would this policy, and every honest baseline, have scored and paid?

`outcomes` reads an outcome log, `table` joins it with the pool, `replay` plays a strategy through it (answer, reveal,
learn), `serving` is focalroute itself as a strategy, `baselines` and `votes` are the baselines, `playing` plays
everything, `metrics` compares, `report` puts it together as an `eval_result`, `eval_page` says what its page shows.
`recording` trains on a log.
"""
