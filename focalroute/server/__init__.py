"""An OpenAI-compatible server in front of an ensemble (extra ``server``): any OpenAI client is a client of it.

`create_app` makes an ASGI application of an `AsyncEnsemble`; ``focalroute serve`` runs one by uvicorn. What a request
may hold and what comes back is in `docs/server.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalroute.core.errors import ConfigError, needing
from focalroute.server.callers import Caller, Callers
from focalroute.serving.ensemble import AsyncEnsemble

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["Caller", "Callers", "create_app"]

#: Who needs what, and the extra that has it.
NEEDED = "the server needs starlette, uvicorn and prometheus-client", "server"


def create_app(ensemble: AsyncEnsemble, *, callers: Callers | None = None, local_only: bool = False) -> Starlette:
    """An OpenAI-compatible server in front of an ensemble, as an ASGI application.

    Run by itself (``uvicorn module:app``) it closes the ensemble at its end; mounted in another application, the
    ensemble's maker does.

    Args:
        callers: who may ask; their limits have to be in the ensemble's budget (`Callers.within`). None: everyone who
            can reach it.
        local_only: whether only requests are answered that call the server localhost or a loopback address: a web page
            cannot make its visitor's browser send those.

    Raises:
        ConfigError: it is not an AsyncEnsemble, does not keep a caller's limit, or the extra ``server`` is missing.
    """
    if not isinstance(ensemble, AsyncEnsemble):
        raise ConfigError(f"ensemble: give an AsyncEnsemble, got {type(ensemble).__name__}")
    if callers is not None:
        callers.require_limits(ensemble.budget)
    with needing(*NEEDED):
        from focalroute.server.app import Service
    return Service(ensemble, callers, local_only=local_only).app()
