"""Ask a pool one closed question, look at the answer and its receipt, and give the right answer."""

from focalroute import Ensemble
from focalroute.sim import SimulatedPool

with SimulatedPool() as pool, Ensemble(pool.endpoints, seed=0) as ensemble:
    answer = ensemble.ask("What is 17 + 25?", choices=["32", "42", "44", "52"])
    print(f"{answer.text} (confidence {answer.confidence:.2f}, cost ${answer.cost})")
    for call in answer.receipt.calls:
        print(f"  round {call.round}: {call.endpoint} by {call.method}, ${call.cost}")
    ensemble.feedback(answer, label="42")
