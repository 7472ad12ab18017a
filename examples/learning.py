"""Let the policies learn from feedback: 300 answers with labels, an update, and its result."""

import tempfile

from focalroute import Ensemble
from focalroute.sim import SimulatedPool, stream

with (
    tempfile.TemporaryDirectory() as folder,
    SimulatedPool() as pool,
    # update_every=100 would do it in the background; `focalroute update` does it from another process
    Ensemble(pool.endpoints, policy=folder, seed=0) as ensemble,
):
    for question in stream(300, seed=2):
        answer = ensemble.ask(question.text, choices=question.choices)
        ensemble.feedback(answer, label=question.answer)
    report = ensemble.update()
    print(f"{report.status}: version {report.version}; {report.reason}")
    print(f"the next answer is by version {ensemble.ask('What is 17 + 25?', answer='number').receipt.policy_version}")
