"""Ask for an object: a pydantic model is filled by several members and fused field by field."""

from typing import Literal

from pydantic import BaseModel

from focalroute import Ensemble
from focalroute.sim import SimulatedPool


class Sum(BaseModel):
    """Closed fields are decided one by one; the others come together from one member that agrees on those."""

    result: Literal["32", "42", "44", "52"]
    explanation: str


with SimulatedPool() as pool, Ensemble(pool.endpoints, policy="plurality") as ensemble:
    answer = ensemble.ask("What is 21 + 21?", answer=Sum)
    print(repr(answer.value), f"at {answer.confidence:.2f}, by field: {dict(answer.shares)}")
    for text, probability in zip(answer.candidates, answer.probabilities, strict=True):
        print(f"  {probability:.2f} {text}")
    ensemble.feedback(answer, label=Sum(result="42", explanation="ok"))

    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    print(ensemble.ask("What is 17 + 26?", answer=schema).value)  # needs the extra "schema"
