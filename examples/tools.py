"""A loop of tool calls: members call tools, equal calls are one candidate, and the results go back as messages."""

import json
from typing import Any

from focalroute import Ensemble
from focalroute.sim import SimulatedPool

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def add(a: int, b: int) -> int:
    return a + b


messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 17 + 25?"}]
with SimulatedPool() as pool, Ensemble(pool.endpoints, policy="plurality") as ensemble:
    answer = ensemble.ask(messages, params={"tools": [ADD]})
    while answer.tool_calls:
        print(f"{answer.value} at {answer.confidence:.2f}, {len(answer.candidates)} candidate(s)")
        messages.append(answer.message)
        for call in answer.tool_calls:
            result = add(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})
        answer = ensemble.ask(messages, params={"tools": [ADD]})
    print(answer.text, f"${ensemble.stats().cost} in all")
