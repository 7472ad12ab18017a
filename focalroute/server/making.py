"""The application of a server, made where what it needs is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalroute.core.errors import ConfigError
from focalroute.server.callers import Callers
from focalroute.serving.ensemble import AsyncEnsemble

if TYPE_CHECKING:
    from starlette.applications import Starlette


NEEDED = "the server needs starlette, uvicorn and prometheus-client; pip install 'focalroute[server]'"


def create_app(ensemble: AsyncEnsemble, *, callers: Callers | None = None, local_only: bool = False) -> Starlette:
    """An OpenAI-compatible server in front of an ensemble, as an ASGI application.

    Run by itself (``uvicorn module:app``) it closes the ensemble at its end; mounted in another application, whoever
    made the ensemble does.

    Args:
        callers: who may ask; their limits have to be in the ensemble's budget (`Callers.within`). None: anybody who
            can reach it.
        local_only: whether only requests are answered that call the server localhost, 127.0.0.1 or ::1: a web page
            cannot make its visitor's browser send those.

    Raises:
        ConfigError: the ensemble is none, or does not keep a caller's limit, or the extra ``server`` is not installed.
    """
    if not isinstance(ensemble, AsyncEnsemble):
        raise ConfigError(f"ensemble: give an AsyncEnsemble, got {type(ensemble).__name__}")
    if callers is not None:
        callers.require_limits(ensemble.budget)
    try:
        from focalroute.server.app import application
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] == "focalroute":
            raise
        raise ConfigError(NEEDED) from None
    return application(ensemble, callers, local_only=local_only)
