"""A pool of simulated models served over real HTTP, for trying focalroute out, for examples and for tests.

`stream` generates questions with true labels. `SimulatedPool` serves models that differ in skill, price, speed and
calibration, in the wire format of any provider, and that fail in any way on request (`Fault`). It needs no key and no
network. `prose_requests` generates requests for prose; the quality of a reply can be computed from its text.
"""

from focalroute.sim.faults import Fault, ModelStats
from focalroute.sim.models import SimulatedModel, default_models, relay_models
from focalroute.sim.process import SimulatedPool
from focalroute.sim.prose import Brief, prose_requests
from focalroute.sim.questions import ALL_TOPICS, TOPICS, Question, generate, solve, stream

__all__ = [
    "ALL_TOPICS",
    "TOPICS",
    "Brief",
    "Fault",
    "ModelStats",
    "Question",
    "SimulatedModel",
    "SimulatedPool",
    "default_models",
    "generate",
    "prose_requests",
    "relay_models",
    "solve",
    "stream",
]
