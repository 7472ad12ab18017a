"""Any OpenAI client is a client of the server: here the openai library, unchanged but for its address.

In practice `focalroute serve --pool pool.toml --store focalroute.db` runs it; here it runs beside its client.
"""

import asyncio
import socket

import uvicorn
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from focalroute import AsyncEnsemble
from focalroute.server import create_app
from focalroute.sim import SimulatedPool

QUESTION = "What is 21 + 21?"


def user(text: str) -> ChatCompletionUserMessageParam:
    return {"role": "user", "content": text}


async def ask(url: str) -> None:
    async with AsyncOpenAI(base_url=url, api_key="none is needed on this machine") as client:
        wishes = {"choices": ["32", "42", "44"]}  # arguments that OpenAI's API does not have
        messages = [{"role": "user", "content": QUESTION}]
        reply = await client.chat.completions.create(
            model="focalroute",
            messages=messages,  # type: ignore[arg-type]
            extra_body={"focalroute": wishes},
        )
        told = (reply.model_extra or {})["focalroute"]
        print(
            f"{reply.choices[0].message.content}, {told['confidence']:.0%} sure, ${told['cost_usd']}, {told['members']}"
        )
        await client.post("/feedback", body={"id": reply.id, "label": "42"}, cast_to=object)

        aloud = user(f"{QUESTION} Think aloud.")
        async for chunk in await client.chat.completions.create(model="focalroute", messages=[aloud], stream=True):
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with SimulatedPool() as pool:
            app = create_app(AsyncEnsemble(pool.endpoints, seed=0), local_only=True)  # which it closes at its end
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
            serving = asyncio.create_task(server.serve(sockets=[sock]))
            await ask(f"http://127.0.0.1:{sock.getsockname()[1]}/v1")
            server.should_exit = True
            await serving


asyncio.run(main())
