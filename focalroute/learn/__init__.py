"""Learning: from answers and their feedback to the next policy.

`online` is the whole of an update, top to bottom: feedback (`reward`) makes an answer an episode, and episodes
make a batch (`trajectory`); `mappo` improves Decider, Fusion and critic on it (`nets`, `losses`, `adam`). The outcome
is put on `trial`, and serves once the `gate` finds it surely better. `export` writes the networks as ONNX, which is all
that serving sees; `backend` lets torch run them instead of numpy.

`offline` is the whole of training on recorded answers, and of the shipped policy on synthetic pools; `fleet` elects the
one worker of many that learns.
"""
