"""Evaluation on recorded answers: what would this policy, and every honest baseline, have scored and paid?

`outcomes` reads an outcome log, `table` joins it with the pool, `replay` plays a strategy through it (answer, reveal,
learn), `serving` is focalroute itself as a strategy, `baselines` lists the baselines (`singles`, `votes`, `subsets`,
`textual`; `training` is what they may learn from), `playing` plays everything, `metrics` compares,
`report` puts it together, `figures` and `eval_page` say what its page shows. `recording` and
`train_command` train on a log.
"""
