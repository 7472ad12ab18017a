"""Looks up the cost of calls that broke off.

OpenRouter gives each call an id, in the header ``X-Generation-Id`` and in every piece of a stream
(https://openrouter.ai/docs/api-reference/streaming), and reports its cost by that id
(https://openrouter.ai/docs/api-reference/get-a-generation) some time later.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from contextvars import ContextVar

from focalroute.core.errors import CallFailed
from focalroute.core.event_loops import Background
from focalroute.endpoints.client import EndpointClient
from focalroute.endpoints.paid_call import PaidCall

_HEADER = b"x-generation-id"
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # anything else might change the address
_WAITS_S = (1.0, 3.0, 10.0, 30.0, 120.0)
_MOST = 100  # lookups under way; the estimates of further calls stand


#: The running task's call.
PAID_CALL: ContextVar[PaidCall | None] = ContextVar("paid_call", default=None)


def note_generation(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Note the service's id of this task's call, if the response's headers have it."""
    paid_call = PAID_CALL.get()
    if paid_call is not None:
        names = (value.decode("latin-1") for name, value in headers if name.lower() == _HEADER)
        paid_call.generation = next(names, None)


class Settlement:
    """Looks up the costs of one endpoint's calls in the background. Closing cancels unfinished lookups.

    Attributes:
        possible: whether its service reports costs afterwards.
    """

    def __init__(self, client: EndpointClient) -> None:
        self.possible = client.endpoint.spoken == "openrouter"
        self._client = client
        self._lookups = Background()

    def begin(self, paid_call: PaidCall) -> None:
        """Look up the cost of a call whose bill is an estimate, if its service gave it an id."""
        name = paid_call.generation or ""
        if self.possible and paid_call.doubtful and _NAME.fullmatch(name) and len(self._lookups) < _MOST:
            self._lookups.start(self._settle(paid_call, name))

    async def _settle(self, paid_call: PaidCall, name: str) -> None:
        for wait_s in _WAITS_S:
            await asyncio.sleep(wait_s)
            with contextlib.suppress(CallFailed):
                cost = await self._client.cost_of(name)
                if cost is not None:
                    paid_call.correct(cost)
                    return

    async def aclose(self) -> None:
        """Cancel the running loop's lookups."""
        await self._lookups.cancel()
