"""An OpenAI-compatible server in front of an ensemble (extra ``server``), for any OpenAI client.

`create_app` makes an ASGI application from an `AsyncEnsemble`; ``focalroute serve`` runs it with uvicorn. Requests and
responses are described in `docs/server.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalroute.core.errors import ConfigError, needing
from focalroute.server.callers import Caller, Callers
from focalroute.serving.ensemble import AsyncEnsemble

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["Caller", "Callers", "create_app"]

#: What the server needs, and the extra that provides it.
NEEDED = "the server needs starlette, uvicorn and prometheus-client", "server"


def create_app(ensemble: AsyncEnsemble, *, callers: Callers | None = None, local_only: bool = False) -> Starlette:
    """Make an ASGI application: an OpenAI-compatible server in front of an ensemble.

    Run on its own (``uvicorn module:app``), it closes the ensemble on shutdown. If you mount it in another application,
    close the ensemble yourself.

    Args:
        callers: who may ask; their limits must be in the ensemble's budget (`Callers.within`). None: anyone who can
            reach the server.
        local_only: whether to answer only requests whose Host header names localhost or a loopback address. This keeps
            out web pages that reach the server through a visitor's browser (DNS rebinding).

    Raises:
        ConfigError: it is not an AsyncEnsemble, does not enforce a caller's limit, or the extra ``server`` is missing.
    """
    if not isinstance(ensemble, AsyncEnsemble):
        raise ConfigError(f"ensemble: give an AsyncEnsemble, got {type(ensemble).__name__}")
    if callers is not None:
        callers.require_limits(ensemble.budget)
    with needing(*NEEDED):
        from focalroute.server.app import Service
    return Service(ensemble, callers, local_only=local_only).app()
