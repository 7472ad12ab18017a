"""A simulated model asked without a server: the same reply to the same request as over HTTP, and no waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from focalroute.sim.compose import Composer
from focalroute.sim.dialects import DIALECTS
from focalroute.sim.models import SimulatedModel
from focalroute.sim.replies import Voice
from focalroute.sim.request import parse_request
from focalroute.sim.served import Served

__all__ = ["complete"]


def complete(model: SimulatedModel, body: Mapping[str, Any], dialect: str = "openai") -> dict[str, Any]:
    """The payload that the service answers this request with, as long as nothing fails.

    Raises:
        Refused: the service would refuse it.
    """
    spoken = DIALECTS[dialect]
    asked = parse_request(body, spoken, model)
    voice = Voice(model, asked.prompt, allowed=asked.allowed, room=asked.room)
    replies = [voice.say(i, asked.temperature, asked.seed) for i in range(asked.n)]
    tokens = sum(len(reply.tokens) for reply in replies)
    return Composer(spoken, model.name, asked, replies, Served(model).bill(asked.prompt_tokens, tokens, None)).whole()
