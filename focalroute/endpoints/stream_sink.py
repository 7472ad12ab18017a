"""Where a streamed reply goes: whichever call is the first to say something has it for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class StreamSink:
    """Where the pieces of one streamed answer go. Belongs to the running event loop.

    Attributes:
        begun: done once the first piece was said; from then on the answer is what its speaker goes on to say.
        speaker: whose piece that was; None: nobody has said anything yet.
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.speaker: object | None = None
        self._put = put
        self._pieces: list[str] = []

    @property
    def said(self) -> str:
        """All that was said so far."""
        return "".join(self._pieces)

    def say(self, speaker: object, piece: str) -> None:
        """Pass a piece on, unless somebody else has begun."""
        if self.speaker is None:
            self.speaker = speaker
            self.begun.set_result(None)
        if self.speaker is speaker:
            self._pieces.append(piece)
            self._put(piece)
