"""Your own servers and hosted ones in one pool: your own cost next to nothing, hosted ones are asked when in doubt."""

from decimal import Decimal

from focalroute import Ensemble
from focalroute.sim import SimulatedModel, SimulatedPool, stream

OWN = ("local-7b", "local-8b")
models = [
    # vLLM and llama.cpp on your own machines: the cost of their hours, divided by the tokens
    SimulatedModel("local-7b", skill=0.75, input_usd_per_1m="0.01", output_usd_per_1m="0.01"),
    SimulatedModel("local-8b", skill=0.75, input_usd_per_1m="0.01", output_usd_per_1m="0.01"),
    SimulatedModel("hosted-70b", skill=0.92, input_usd_per_1m="0.88", output_usd_per_1m="0.88"),
]

# for real servers only addresses, models and keys differ: see examples/pool.toml
with SimulatedPool(models, dialects={"local-7b": "vllm", "local-8b": "llamacpp", "hosted-70b": "together"}) as pool:
    for policy in ("best-single", "plurality", None):
        right, calls, usd = 0, 0, Decimal(0)
        with Ensemble(pool.endpoints, policy=policy, cost_weight=0.2, seed=0) as ensemble:
            for question in stream(50, seed=5):
                answer = ensemble.ask(question.text, choices=question.choices)
                right += answer.choice == question.label
                calls += sum(call.endpoint not in OWN for call in answer.receipt.calls)
                usd += answer.cost or 0
                ensemble.feedback(answer, label=question.answer)
        name = policy or "learned"
        print(f"{name:11} {right / 0.5:.0f} % right, {calls / 0.5:.0f} % of questions left the house, ${usd:.6f}")
