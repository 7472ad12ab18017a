"""Observing: a sliding window of outcomes, what it says of the pool, and one ask as the policies see it.

    outcome -> Window -> Reading ─┐
    query -> text features ───────┴─> Sight -> Observation (to the Decider), Evidence (to the Fusion)

`layout` names every number in them; `diversity` holds the measures of how differently models fail.
"""

from __future__ import annotations

from focalroute.observe.ask_view import AskView
from focalroute.observe.observer import Observer
from focalroute.observe.window import Window

__all__ = ["AskView", "Observer", "Window"]
