"""Learning: from answers and their feedback to the next policy.

The networks live here as plain numpy (`nets`), start from the policy that is shipped (`shipped`, trained on made-up
synthetic pools from a Fusion set by hand) and leave as ONNX (`export`), which is all that serving ever sees. `online`
is the whole of an update, top to bottom: what was said of an answer (`reward`) becomes an `episode`, episodes a batch
(`trajectory`), `mappo` improves Decider, Fusion and critic on it (`likelihood`, `losses`, `gae`, `backward`, `adam`),
and the `gate` compares the outcome with what serves. `passes` lets torch run the nets instead, for long runs.

`offline` is the whole of training on `recorded` answers: `prior_stats` and `views` say what would have been known,
`rollout` plays a policy, `stacking` trains the Fusion, `reinforce` the Decider (that of `shipped` by `lookahead`
first) and the critic; a `checkpoint` outlives a killed process.
"""

from __future__ import annotations

__all__: list[str] = []
