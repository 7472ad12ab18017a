"""Three ways to answer an open request: choose the best reply, pick one member, or write a text from all replies."""

from statistics import fmean

from focalroute import Ensemble
from focalroute.sim import SimulatedModel, SimulatedPool, prose_requests

# five unreliable writers about towns; one of them also merges all replies into one text
models = [SimulatedModel(f"writer-{i}", skill=0.75) for i in range(5)]

with (
    SimulatedPool(models) as pool,
    # a low cost weight, so that several members are asked; the default is more thrifty
    Ensemble(pool.endpoints, synthesiser="writer-0", cost_weight=0.003, seed=0) as ensemble,
):
    quality: dict[str, list[float]] = {"choose": [], "pick": [], "synthesise": []}
    for request in prose_requests(30, seed=3, axes=["truthful"]):
        for mode, seen in quality.items():
            answer = ensemble.ask(request.request, combine=mode)  # type: ignore[call-overload]
            seen.append(request.quality(answer.text))  # a simulated request knows what is right in a text
            ensemble.feedback(answer, reward=2 * seen[-1] - 1)  # graded, in [-1, 1]
    for mode, seen in quality.items():
        print(f"{mode}: {100 * fmean(seen):.0f} % of what was said is right")
    print(f"the last one, ${answer.cost}, is made of {', '.join(answer.made_of)}: {answer.text}")
