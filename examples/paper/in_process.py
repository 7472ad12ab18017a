"""Calls to simulated models without a server, with the replies and costs of those over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.records import Reply
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.wire import decode, encode
from focalroute.evaluate.live_environment import Asker, ChainCall, ChainReply, LiveQuery, query_of, reply_of
from focalroute.money.cost import cost_of
from focalroute.sim import SimulatedModel
from focalroute.sim.compose import composed
from focalroute.sim.dialects import DIALECTS
from focalroute.sim.faults import ServedModel

__all__ = ["complete", "in_process"]

#: The capabilities of a simulated model in the dialect "openai".
_ABLE = Capabilities(True, 20, True, True, True)


def complete(model: SimulatedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a reply in OpenAI's dialect, at once and without faults."""
    return composed(ServedModel(model), body, DIALECTS["openai"]).whole()


def in_process(models: Sequence[SimulatedModel], endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery]) -> Asker:
    """Make the calls of `focalroute.evaluate.live_environment.over_http` to simulated models in this process."""
    by_name: Mapping[str, SimulatedModel] = {model.name: model for model in models}

    def ask(calls: Sequence[ChainCall]) -> list[ChainReply]:
        return [_direct(by_name[endpoints[call.endpoint].model], endpoints[call.endpoint], call) for call in calls]

    def _direct(model: SimulatedModel, endpoint: Endpoint, call: ChainCall) -> ChainReply:
        live = queries[call.query]
        elicited = plan(query_of(live, call.shown), _ABLE)
        completion = decode(complete(model, encode(elicited.request, endpoint.model, "openai")))
        usage = completion.usage
        cost = None if usage is None else cost_of(usage, endpoint)[0]
        try:
            reading = elicited.read(completion)
        except CallFailed as error:
            return reply_of(live, Reply(endpoint.name, cost=cost, error=error.failure))
        reply = Reply(
            endpoint.name, text=reading.text, choice=reading.choice, probabilities=reading.probabilities, cost=cost
        )
        return reply_of(live, reply)

    return ask
