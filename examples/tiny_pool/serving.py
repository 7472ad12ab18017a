"""Starts, prices and kills the llama-servers of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Self

from examples.tiny_pool.gguf_file import CONTEXT
from examples.tiny_pool.recipe import Recipe
from examples.tiny_pool.training import ready
from focalroute import Endpoint
from tests.real.servers import llama_serving

__all__ = ["Servers"]

_SLOTS = 12  # one for each of the ten samples that a call may draw, and two more


class Servers:
    """Running servers, one for each recipe, until the block ends; their logs are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._processes: dict[str, Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, recipes: Sequence[Recipe]) -> list[Endpoint]:
        """Serve these; the endpoints, with their prices."""
        return [self._start(recipe) for recipe in recipes]

    def kill(self, name: str) -> None:
        """End a server at once, as a crash would."""
        self._processes[name].kill()
        self._processes[name].wait()

    def _start(self, recipe: Recipe) -> Endpoint:
        log = self._folder / f"{recipe.name}-{len(self._processes)}.log"
        serving = llama_serving(ready(recipe), log, slots=_SLOTS, context=CONTEXT)
        root, self._processes[recipe.name] = self._stack.enter_context(serving)
        return Endpoint(
            recipe.name,
            model=recipe.name,
            base_url=f"{root}/v1",
            dialect="llamacpp",
            input_usd_per_1m=recipe.usd_per_1m,
            output_usd_per_1m=recipe.usd_per_1m,
            structured_choice=False,  # it has learned letters, no JSON; all else is probed
        )
