"""`Ensemble`, the synchronous face of `AsyncEnsemble`: its methods, run on an event loop in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from focalroute.config import Endpoint
from focalroute.ensemble import AsyncEnsemble, pool_arguments
from focalroute.stats import Stats

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = ["Ensemble"]

P = ParamSpec("P")
R = TypeVar("R")


def _like_async(
    _: Callable[Concatenate[AsyncEnsemble, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Ensemble, P], None]]:
    """Type ``__init__`` as `AsyncEnsemble`'s."""
    return lambda init: init


def _blocking(method: Callable[Concatenate[AsyncEnsemble, P], Awaitable[R]]) -> Callable[Concatenate[Ensemble, P], R]:
    """The method, run to its end on the ensemble's own loop."""

    @wraps(method)
    def call(self: Ensemble, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop().call(partial(method, self._async, *args, **kwargs))

    return cast("Callable[Concatenate[Ensemble, P], R]", call)


class Ensemble:
    """A pool of endpoints that answers as one, for code without ``await``; arguments and methods as `AsyncEnsemble`.

    Safe to use from many threads, and inside a running event loop (a notebook). Close it with ``with`` or `close`.
    """

    @_like_async(AsyncEnsemble.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._async = AsyncEnsemble(*args, **kwargs)
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._thread = ExitStack()

    @classmethod
    def from_toml(cls, path: str | Path, **settings: Any) -> Self:
        """An ensemble from a pool file; see `AsyncEnsemble.from_toml`."""
        return cls(**pool_arguments(path, settings))

    ask = _blocking(AsyncEnsemble.ask)
    ask_many = _blocking(AsyncEnsemble.ask_many)
    feedback = _blocking(AsyncEnsemble.feedback)
    reload = _blocking(AsyncEnsemble.reload)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The pool."""
        return self._async.endpoints

    def stats(self) -> Stats:
        """What was asked, paid and learned so far, by endpoint."""
        return self._async.stats()

    def close(self) -> None:
        """Finish what is queued, close connections, the store and the thread. Idempotent."""
        self._loop().call(self._async.aclose)
        with self._lock:
            self._portal = None
            self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loop(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                from anyio.from_thread import start_blocking_portal

                self._portal = self._thread.enter_context(start_blocking_portal("asyncio"))
            return self._portal
