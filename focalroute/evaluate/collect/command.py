"""``focalroute collect``: what the command line calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.evaluate.collect.collecting import Collected, collect
from focalroute.evaluate.collect.dataset import read_dataset
from focalroute.evaluate.collect.harness import import_samples
from focalroute.evaluate.job_engine import open_engine
from focalroute.evaluate.output import table


def collect_command(
    dataset: str,
    pool: Path,
    out: Path,
    *,
    columns: Sequence[str] = (),
    answer: str | None = None,
    limit: int | None = None,
    concurrency: int = 16,
    max_usd: str | None = None,
    resume: bool = False,
    engine: str = "local",
    as_json: bool = False,
) -> bool:
    """Collect with a progress bar and print what came of it; whether every question was asked.

    Args:
        dataset: see `read_dataset`; ``columns`` are of the form FIELD=COLUMN.
        limit: only the first so many questions.
        engine: see `focalroute.evaluate.job_engine.open_engine`.

    Raises:
        ConfigError: an argument, the dataset, the pool or the log is wrong, or there is no such engine.
        FocalrouteError: see `collect`.
    """
    endpoints = load_pool(pool).endpoints
    questions = read_dataset(dataset, columns=_columns(columns), kind=answer)[:limit]
    settings: Any = {"kind": answer, "concurrency": concurrency, "max_usd": max_usd, "resume": resume}
    with progress_bar("asking", len(questions), shown=not as_json) as advance, open_engine(engine) as opened:
        collected = collect(endpoints, questions, out, **settings, advance=advance, engine=opened)
    names = [endpoint.name for endpoint in endpoints]
    if as_json:
        print(json.dumps(_told(collected, out, names), indent=2))
    else:
        _show(collected, out, names)
    return collected.stopped is None


def import_command(samples: Sequence[str], out: Path, *, as_json: bool = False) -> None:
    """Import files of per-choice log-likelihoods, each given as MODEL=FILE, and print what came of it.

    Raises:
        ConfigError: see `import_samples`.
    """
    files: dict[str, list[str]] = {}
    for text in samples:
        model, _, file = text.partition("=")
        if not (model and file):
            raise ConfigError(f"samples: {text!r}: give MODEL=FILE, such as llama-3-8b=samples_gpqa.jsonl")
        files.setdefault(model, []).append(file)
    found = import_samples(files, out)
    if as_json:
        print(json.dumps({"log": str(out), **asdict(found)}, indent=2))
        return
    for name, answered in found.answered.items():
        share = f"{found.right[name] / answered:.1%} right" if answered else "-"
        print(f"{name}: {answered} questions, {share}")
    print(f"{found.questions} questions; {out}")


def _columns(given: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in given]
    wrong = next((text for text, (field, _, column) in zip(given, pairs, strict=True) if not (field and column)), None)
    if wrong is not None:
        raise ConfigError(f"column: {wrong!r}: give FIELD=COLUMN, such as label=answer")
    return {field.strip(): column.strip() for field, _, column in pairs}


def _told(collected: Collected, out: Path, names: Sequence[str]) -> Mapping[str, object]:
    return {
        "log": str(out),
        "before": collected.before,
        "asked": collected.asked,
        "usd": str(collected.usd),
        "stopped": collected.stopped,
        "endpoints": [
            {
                "name": name,
                "answered": collected.answered[name],
                "right": collected.right[name],
                "failed": collected.failed[name],
            }
            for name in names
        ],
    }


def _show(collected: Collected, out: Path, names: Sequence[str]) -> None:
    from rich.console import Console

    rows = []
    for name in names:
        answered = collected.answered[name]
        share = f"{collected.right[name] / answered:.1%}" if answered else "-"
        rows.append((name, str(answered), share, str(collected.failed[name])))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(("endpoint", "answered", "right", "failed"), rows, left=("endpoint",)))
    there = f" ({collected.before} were there)" if collected.before else ""
    console.print(f"{collected.asked} questions asked for ${collected.usd:f}; {out}{there}")
    if collected.stopped is not None:
        console.print(f"stopped: {collected.stopped}; --resume goes on from here")
