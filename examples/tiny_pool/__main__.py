"""The whole loop on five language models of half to three quarters of a million parameters, which learn in minutes.

    python -m examples.tiny_pool [--seeds N] [--queries N] [--out FOLDER]     (or `make tiny-pool`)

Needs torch (the extra ``train``) and llama-server (`make real`). The models are trained once and kept in the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.tiny_pool.experiment import STEADY, Seed, Sizes
from examples.tiny_pool.recipe import ROSTER, Roster
from examples.tiny_pool.serving import Servers
from examples.tiny_pool.summary import draw, tables
from examples.tiny_pool.training import ready
from focalroute.evaluate.report_page.report_command import report_command
from tests.real.build import llama_server_ready

__all__ = ["main", "played", "write"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is not trained yet, play every seed, and write figures and tables."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_pool")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=Sizes().stream, help="of each stream")
    parser.add_argument("--out", type=Path, default=Path("build/tiny-pool"))
    parser.add_argument("--only-models", action="store_true", help="train the models, and stop")
    asked = parser.parse_args(arguments)
    for recipe in (*ROSTER.models, ROSTER.newcomer):
        print(f"{recipe.name}: {ready(recipe)}", flush=True)
    if asked.only_models:
        return
    if not llama_server_ready():
        parser.error("llama-server is not built; `make real` does it")
    if asked.out.exists():
        parser.error(f"{asked.out} already exists; remove it, or give another folder")
    seeds = [played(asked.out / f"seed-{seed}", seed, Sizes(stream=asked.queries)) for seed in range(asked.seeds)]
    write(seeds, asked.out)
    print((asked.out / "tables.md").read_text())
    for path in sorted(asked.out.iterdir()):
        files = path.rglob("*") if path.is_dir() else [path]
        print(f"{path}: {sum(file.stat().st_size for file in files) / 1024:.0f} KB")


def write(seeds: Sequence[Seed], folder: Path) -> None:
    """Write tables and a figure of all seeds, and the report on the store of the first seed's warm start."""
    (folder / "tables.md").write_text(tables(seeds) + "\n")
    draw(seeds, folder / "accuracy.svg")
    warm = seeds[0].folder / next(iter(STEADY))
    report_command(None, str(warm.with_suffix(".db")), policy=str(warm), out=folder / "report.html")


def played(folder: Path, seed: int, sizes: Sizes, roster: Roster = ROSTER) -> Seed:
    """One seed from the first call to the last."""
    began = time.monotonic()
    folder.mkdir(parents=True)
    with TemporaryDirectory() as logs, Servers(Path(logs)) as servers:  # a server writes a kilobyte for every call
        run = Seed(folder, seed, sizes, servers, roster)
        run.collect()
        run.train()
        run.serve()
    print(f"seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
    return run


if __name__ == "__main__":
    main()
