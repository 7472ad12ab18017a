"""Print an answer as it arrives; then look at its bill, and give it a reward."""

import asyncio

from focalroute import AsyncEnsemble, Ensemble
from focalroute.sim import SimulatedPool


async def main() -> None:
    async with SimulatedPool() as pool, AsyncEnsemble(pool.endpoints, seed=0) as ensemble:
        async with ensemble.stream("What is 21 + 21? Think aloud.") as stream:
            async for piece in stream:
                print(piece, end="", flush=True)
        answer = stream.answer
        print(f"\n  said by {answer.replies[-1].endpoint}, ${answer.cost}, {len(answer.replies)} asked")
        await ensemble.feedback(answer, reward=1.0)

        async with ensemble.stream("What is 21 + 21?", choices=["32", "42"]) as stream:
            print([piece async for piece in stream], "closed questions come in one piece")


asyncio.run(main())

# Without await; leaving the loop cancels the answer, and what it consumed until then is paid.
with SimulatedPool() as pool, Ensemble(pool.endpoints, seed=0) as ensemble:
    for piece in ensemble.stream("What is 38 + 4? Think aloud."):
        print(piece.strip(), "... and no more")
        break
