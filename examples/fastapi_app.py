"""A FastAPI application that asks an ensemble in a route of its own, and mounts the OpenAI-compatible server beside it.

Run such a file with `uvicorn fastapi_app:app`; here it is asked without a network, as tests of an application would.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from focalroute import AsyncEnsemble
from focalroute.server import create_app
from focalroute.sim import SimulatedPool


class Sum(BaseModel):
    answer: int
    confidence: float
    usd: Decimal | None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One ensemble for all requests, made and closed with the application."""
    async with (
        SimulatedPool() as pool,
        AsyncEnsemble(pool.endpoints, seed=0) as ensemble,
    ):  # or AsyncEnsemble("pool.toml")
        app.state.ensemble = ensemble
        app.mount("/llm", create_app(ensemble))
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/sums")
async def sums(a: int, b: int) -> Sum:
    answer = await app.state.ensemble.ask(f"What is {a} + {b}?", answer=int)
    return Sum(answer=answer.value, confidence=answer.confidence, usd=answer.cost)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        print((await client.get("/sums", params={"a": 21, "b": 21})).json())
        body = {"model": "focalroute", "messages": [{"role": "user", "content": "What is 21 + 21?"}]}
        reply = (await client.post("/llm/v1/chat/completions", json=body)).json()
        print(reply["choices"][0]["message"]["content"], reply["usage"])


if __name__ == "__main__":
    asyncio.run(main())
