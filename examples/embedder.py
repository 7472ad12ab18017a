"""Use another embedder for the queries' texts: an endpoint's /embeddings, or a function of your own."""

from focalroute import Ensemble
from focalroute.sim import SimulatedModel, SimulatedPool, stream

KEYWORDS = ("What is", "number comes next", "How many", "older", "lies", "days")


def keywords(text: str) -> list[float]:
    """Return a vector of fixed length for a text. It may be slow, or a coroutine: a local encoder, a client."""
    return [1.0, *(float(word in text) for word in KEYWORDS)]


experts = [
    SimulatedModel("calculator", skill=0.5, skills={"arithmetic": 0.95}),
    SimulatedModel("reader", skill=0.6, skills={"logic": 0.95}),
    SimulatedModel("encoder", input_usd_per_1m="0.02"),
]
with SimulatedPool(experts) as pool:
    *members, encoder = pool.endpoints
    # The same from a pool file: a table [embedder] with base_url, model and input_usd_per_1m, or with the files of a
    # local encoder, onnx and tokenizer. `focalroute train` and `eval` take it from there, too.
    for embedder in (encoder, keywords):
        with Ensemble(members, embedder=embedder, seed=0) as ensemble:
            for question in stream(40, seed=1):
                answer = ensemble.ask(question.text, choices=question.choices)
                ensemble.feedback(answer, label=question.answer)
        asked = " and ".join(call.endpoint for call in answer.receipt.calls)
        print(f"asked {asked}; ${answer.cost:f}, of which ${answer.receipt.embedding:f} for reading the question")
        for shortfall in answer.degraded:
            print(f"note: {shortfall}")
