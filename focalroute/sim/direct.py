"""From a request to a reply, without a server: what the server answers with, and what may be asked for directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from focalroute.sim.compose import Composer
from focalroute.sim.dialects import DIALECTS, Dialect
from focalroute.sim.faults import Fault
from focalroute.sim.models import SimulatedModel
from focalroute.sim.replies import Voice
from focalroute.sim.request import parse_request
from focalroute.sim.served import Served


def composed(served: Served, body: Mapping[str, Any], dialect: Dialect, fault: Fault | None = None) -> Composer:
    """One call to one model, from the request to the bill; the composer writes the reply.

    Raises:
        Refused: the service refuses the request.
    """
    asked = parse_request(body, dialect, served.model)
    calls = [(text, text) for text in asked.calling.arguments] if asked.calling else None
    voice = Voice(
        served.model,
        asked.prompt,
        allowed=calls or asked.allowed,
        drifted=served.drifted,
        room=asked.room,
        right=0 if calls else None,
    )
    replies = [voice.say(i, asked.temperature, asked.seed) for i in range(asked.n)]
    cost = served.bill(asked.prompt_tokens, sum(len(reply.tokens) for reply in replies), fault)
    return Composer(dialect, served.model.name, asked, replies, cost)


def complete(model: SimulatedModel, body: Mapping[str, Any], dialect: str = "openai") -> dict[str, Any]:
    """The payload that the service answers this request with, as long as nothing fails; no waiting.

    Raises:
        Refused: the service would refuse it.
    """
    return composed(Served(model), body, DIALECTS[dialect]).whole()
