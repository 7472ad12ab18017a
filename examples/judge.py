"""Learn without users' feedback: a judge endpoint grades every other answer in the background."""

from focalroute import Ensemble, Judge
from focalroute.sim import SimulatedModel, SimulatedPool, prose_requests

models = [
    SimulatedModel("handy", skills={"helpful": 0.9}, skill=0.4),
    SimulatedModel("careful", skills={"safe": 0.9}, skill=0.4),
    SimulatedModel("judge", skills={"judging": 0.9}, input_usd_per_1m="0.5", output_usd_per_1m="0.5"),
]

with SimulatedPool(models) as pool:
    *writers, grader = pool.endpoints
    # a function will do as well: Judge(lambda query, answer: 1.0 if "please" in answer.text else -1.0)
    with Ensemble(writers, judge=Judge(grader, share=0.5), seed=0) as ensemble:
        fitting = []
        for request in prose_requests(120, seed=1, axes=["helpful", "safe"]):
            answer = ensemble.ask(request.request, combine="pick")
            fitting.append(answer.made_of == ({"helpful": "handy", "safe": "careful"}[request.axis],))
        print(f"the member that fits the request was picked {sum(fitting[:50])} times in the first 50 requests,")
        print(f"and {sum(fitting[-50:])} times in the last 50")
        stats = ensemble.stats()
        print(f"{stats.judge.judged} answers were judged, for ${stats.judge.cost} of ${stats.cost}")  # type: ignore[union-attr]
