"""``focalroute collect`` and ``import``: make an outcome log, by asking a pool or from data of leaderboards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalroute.cli import EngineOption, JsonOption, PoolOption, SkipBadRowsOption, resumable
from focalroute.core.errors import ConfigError
from focalroute.core.progress import progress_bar
from focalroute.core.spelling import counted

if TYPE_CHECKING:
    from focalroute.evaluate.collect import Collected


def collect(
    dataset: Annotated[str, typer.Argument(help="A .jsonl or .csv file, or hf:NAME[:CONFIG][:SPLIT].")],
    out: Annotated[Path, typer.Option(help="The outcome log to write (.jsonl).")],
    pool: PoolOption = None,
    column: Annotated[
        list[str] | None, typer.Option(help="FIELD=COLUMN where names differ, such as label=gold; may be repeated.")
    ] = None,
    answer: Annotated[str | None, typer.Option(help="Kind of free-form answers, as for ask.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at a time.")] = 16,
    max_usd: Annotated[str | None, typer.Option(help="The most the whole log may cost, USD.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an existing log.")] = False,
    engine: EngineOption = "local",
    as_json: JsonOption = False,
) -> None:
    """Ask every endpoint the questions of a labelled dataset, and write the log that train and eval read.

    Exit code 1 if it stopped before the last question, or no endpoint answered any.
    """
    from focalroute.core.pool import find_pool, load_pool
    from focalroute.evaluate.collect import collect as ask_pool
    from focalroute.evaluate.dataset import read_dataset
    from focalroute.evaluate.job_engine import open_engine

    endpoints = load_pool(pool or find_pool()).endpoints
    questions = read_dataset(dataset, columns=_columns(column or ()), kind=answer)[:limit]
    settings: Any = {"kind": answer, "concurrency": concurrency, "max_usd": max_usd, "resume": resume}
    bar = progress_bar("asking", len(questions), shown=not as_json)
    with resumable(), bar as advance, open_engine(engine) as opened:
        collected = ask_pool(endpoints, questions, out, **settings, advance=advance, engine=opened)
    names = [endpoint.name for endpoint in endpoints]
    if as_json:
        counts = [
            {
                "name": name,
                **{what: getattr(collected, what)[name] for what in ("answered", "right", "failed")},
                "error": collected.error.get(name),
            }
            for name in names
        ]
        summary = {what: getattr(collected, what) for what in ("before", "asked", "usd", "stopped")}
        summary["unpriced"] = sorted(collected.unpriced)
        print(json.dumps({"log": str(out), **summary, "endpoints": counts}, indent=2, default=str))
    else:
        _show(collected, out, names)
    if collected.stopped is not None or (collected.asked and not collected.answered):
        raise typer.Exit(1)


def import_(
    samples: Annotated[
        list[str], typer.Argument(help="MODEL=FILE: lm-evaluation-harness samples, one file for each model and task.")
    ],
    out: Annotated[Path, typer.Option(help="The outcome log to write (.jsonl).")],
    skip_bad_rows: SkipBadRowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make an outcome log from the per-choice log-likelihoods that leaderboards publish."""
    from focalroute.evaluate.harness import import_samples

    files: dict[str, list[str]] = {}
    for text in samples:
        model, file = _pair("samples", text, "MODEL=FILE, such as llama-3-8b=samples_gpqa.jsonl")
        files.setdefault(model, []).append(file)
    found = import_samples(files, out, skip_bad_rows=skip_bad_rows)
    if as_json:
        print(json.dumps({"log": str(out), **dataclasses.asdict(found)}, indent=2))
        return
    for name, answered in found.answered.items():
        print(f"{name}: {counted(answered, 'question')}, {_share_right(found.right[name], answered)} right")
    left_out = f", {counted(found.bad_rows, 'bad row')} left out" if found.bad_rows else ""
    print(f"{counted(found.questions, 'question')}{left_out}; {out}")


def _columns(given: Sequence[str]) -> Mapping[str, str]:
    columns = {}
    for text in given:
        name, column = _pair("column", text, "FIELD=COLUMN, such as label=answer")
        columns[name.strip()] = column.strip()
    return columns


def _pair(field: str, text: str, wanted: str) -> tuple[str, str]:
    """Split a pair at its equals sign; ConfigError if either side is empty."""
    left, _, right = text.partition("=")
    if not (left and right):
        raise ConfigError(f"{field}: {text!r}: give {wanted}")
    return left, right


def _show(collected: Collected, out: Path, names: Sequence[str]) -> None:
    from focalroute.evaluate.output import log_problems, show_table
    from focalroute.evaluate.table import SUSPICIOUS

    rows = []
    for name in names:
        answered = collected.answered[name]
        rows.append((name, str(answered), _share_right(collected.right[name], answered), str(collected.failed[name])))
    show_table(("endpoint", "answered", "right", "failed"), rows, left=("endpoint",))
    for name, error in collected.error.items():
        print(f"{name}: {error}")
    earlier = f" ({collected.before} from before)" if collected.before else ""
    print(f"{counted(collected.asked, 'question')} asked for ${collected.usd:f}; {out}{earlier}")
    never = [name for name in names if collected.answered[name] >= SUSPICIOUS and not collected.right[name]]
    for sentence in log_problems(0, sorted(collected.unpriced), never):
        print(sentence)
    if collected.stopped is not None:
        print(f"stopped: {collected.stopped}; --resume continues from here")


def _share_right(right: int, answered: int) -> str:
    if not answered:
        return "-"
    return f"{right / answered:.1%}"
