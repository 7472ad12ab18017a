"""Asks a service afterwards what a call cost that broke off.

OpenRouter names each call, in the header ``X-Generation-Id`` and in every piece of a stream
(https://openrouter.ai/docs/api-reference/streaming), and tells its cost by that name
(https://openrouter.ai/docs/api-reference/get-a-generation), some time later.
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
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # anything else might lead to another address
_WAITS_S = (1.0, 3.0, 10.0, 30.0, 120.0)
_MOST = 100  # lookups under way; the estimates of further calls stand


#: The call that a task makes.
PAID_CALL: ContextVar[PaidCall | None] = ContextVar("paid_call", default=None)


def note_generation(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Note the name that the service gave to the call of this task, if the headers of its response have it."""
    paid_call = PAID_CALL.get()
    if paid_call is not None:
        names = (value.decode("latin-1") for name, value in headers if name.lower() == _HEADER)
        paid_call.generation = next(names, None)


class Settlement:
    """The lookups of one endpoint, in the background. Those that have not ended at the close are given up.

    Attributes:
        possible: whether its service tells what a call cost.
    """

    def __init__(self, client: EndpointClient) -> None:
        self.possible = client.endpoint.spoken == "openrouter"
        self._client = client
        self._lookups = Background()

    def begin(self, paid_call: PaidCall) -> None:
        """Find out what a call cost whose bill is an estimate, if its service has named it."""
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
        """Give up the running loop's lookups."""
        await self._lookups.cancel()
