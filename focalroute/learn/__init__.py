"""Learns the next policy from answers and their feedback.

`online` is a whole update, top to bottom. Answers and their feedback (`reward`) become episodes, and these a batch
(`trajectory`). `mappo` improves Decider, Fusion and critic on it (`nets`, `losses`, `adam`). The result is put on
`trial`, and serves once the `gate` finds with 95 % confidence that it is better. `export` writes the networks as ONNX,
which is all that serving reads; `backend` can run them in torch instead of numpy.

`offline` trains on recorded answers, and the shipped policy on synthetic pools; `fleet` elects the one worker that
learns.
"""
