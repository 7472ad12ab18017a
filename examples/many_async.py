"""Ask many questions concurrently under a budget, with a progress bar; stop cleanly when the budget is spent."""

import asyncio

from focalroute import Answer, AsyncEnsemble, Budget, BudgetExceeded
from focalroute.sim import SimulatedPool, stream


async def main() -> None:
    questions = list(stream(60, seed=1))
    with SimulatedPool() as pool:
        async with AsyncEnsemble(pool.endpoints, budget=Budget(usd_total="0.005"), seed=0) as ensemble:
            asks = [{"query": q.text, "choices": q.choices} for q in questions]
            results = await ensemble.ask_many(asks, concurrency=8, progress=True, return_exceptions=True)
            right = sum(isinstance(a, Answer) and a.choice == q.label for a, q in zip(results, questions, strict=True))
            refused = sum(isinstance(a, BudgetExceeded) for a in results)
            print(f"{right} right, {refused} refused by the budget, ${ensemble.stats().cost} spent")


asyncio.run(main())
