"""``python -m focalroute.sim``: serves the default pool and prints its pool file; or prints questions.

`SimulatedPool` runs it with ``--from-stdin``. Then it reads the pool's spec as one line of JSON, prints the port, and
ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import sys
from typing import get_args

from focalroute.core.errors import ConfigError
from focalroute.sim.models import SimulatedModel, default_models
from focalroute.sim.process import DialectName, pool_endpoints, pool_toml
from focalroute.sim.questions import ALL_TOPICS, TOPICS, stream


def main() -> None:
    """Parse the arguments and serve until interrupted, or until standard input ends."""
    parser = argparse.ArgumentParser(
        prog="python -m focalroute.sim", description="Serve a pool of simulated models over HTTP."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 (the default): any free one")
    parser.add_argument("--seed", type=int, default=0, help="seed of the models' draws")
    parser.add_argument("--dialect", choices=get_args(DialectName), default="openai", help="of the printed pool file")
    parser.add_argument(
        "--queries", type=int, metavar="N", help="print N questions with their answers instead of serving"
    )
    parser.add_argument("--topic", choices=ALL_TOPICS, help="topic of the questions; default: all usual ones")
    parser.add_argument("--free-form", action="store_true", help="print questions without choices")
    parser.add_argument("--from-stdin", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.queries is not None:
            _print_queries(options)
            return
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve_parent_process() if options.from_stdin else _serve_user(options))
    except (ConfigError, OSError, OverflowError) as error:  # such as a port that is taken, or too large
        parser.error(str(error))


def _print_queries(options: argparse.Namespace) -> None:
    """Print lines of a dataset, for ``focalroute eval --live``."""
    topics = [options.topic] if options.topic else TOPICS
    for number, q in enumerate(stream(options.queries, seed=options.seed, topics=topics)):
        line = {"id": f"{number}-{q.id}", "task": q.topic, "prompt": q.text}
        rest = {"label": q.answer} if options.free_form else {"choices": q.choices, "label": q.label}
        print(json.dumps({**line, **rest}))


async def _serve_parent_process() -> None:
    from focalroute.sim.server import PoolServer

    spec = json.loads(sys.stdin.buffer.readline())
    models: list[SimulatedModel] = [
        getattr(importlib.import_module(module), kind)(**model) for module, kind, model in spec["models"]
    ]
    async with PoolServer(models, spec["keys"]).listening() as port:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await _end_of_stdin()


async def _serve_user(options: argparse.Namespace) -> None:
    from focalroute.sim.server import PoolServer

    models = default_models(options.seed)
    async with PoolServer(models, {}).listening(options.port) as port:
        dialects = dict.fromkeys((model.name for model in models), options.dialect)
        pool_file = pool_toml(pool_endpoints(models, port, dialects, {}))
        print(f"# Simulated models; they are served until Ctrl-C.\n\n{pool_file}")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def _end_of_stdin() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    try:
        while await reader.read(1024):
            pass
    finally:
        transport.close()


if __name__ == "__main__":
    main()
