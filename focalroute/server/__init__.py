"""An OpenAI-compatible server in front of an ensemble (extra ``server``): any OpenAI client is a client of it.

`create_app` makes an ASGI application of an `AsyncEnsemble`; ``focalroute serve`` runs one by uvicorn. What a request
may hold and what comes back is in `docs/server.md`.
"""

from focalroute.server.callers import Caller, Callers
from focalroute.server.making import create_app

__all__ = ["Caller", "Callers", "create_app"]
