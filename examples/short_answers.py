"""Ask for numbers in free text: however replies end, equal answers are one candidate; samples show certainty."""

from focalroute import Ensemble
from focalroute.answers import normal_form
from focalroute.sim import SimulatedModel, SimulatedPool, stream

# What a model writes, and the form in which answers are compared; labels go through the same.
for kind, reply in {
    "number": "60 / 80 = \\frac{3}{4}, so it is 75 % of the cake.\n#### 3/4",
    "short": "Let me think. The answer is **the São Francisco**.",
    "yes-no": "It is divisible by 7, so the claim is not true.",
    "date": "The answer is Sunday, March 3rd, 2024.",
    "math": "Hence $x = \\frac{2}{\\sqrt{8}}$.",
}.items():
    print(f"{kind:7} {normal_form(reply, kind)}")

ENDINGS = ("\n#### {}", " The answer is **{}**.", "\n\\boxed{{}}")
models = [
    SimulatedModel(f"model-{i}", skill=0.5 + 0.1 * i, verbosity=20, ending=ending) for i, ending in enumerate(ENDINGS)
]
questions = list(stream(40, seed=2, topics=["stories"]))
with SimulatedPool(models) as pool:
    for samples in (1, 5):
        with Ensemble(pool.endpoints, seed=0) as ensemble:
            right = 0
            for question in questions:
                answer = ensemble.ask(question.text, answer="number", samples=samples)
                right += str(answer.value) == question.answer
                ensemble.feedback(answer, label=question.answer)
            print(f"{samples} samples: {right} of {len(questions)} right, ${ensemble.stats().cost:.6f}")
    shares = answer.replies[0].shares or ()
    print(f"the last answer: {answer.value} ({answer.confidence:.2f});", answer.replies[0].endpoint, "said", end=" ")
    print(", ".join(f"{normal_form(text, 'number')} ({share:.0%})" for text, share in shares))
