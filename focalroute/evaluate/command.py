"""``focalroute eval``: what the command line calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from focalroute.core.errors import ConfigError
from focalroute.evaluate.eval_page import eval_page, read_eval
from focalroute.evaluate.files import STANDARD_OUTPUT, check_writable, write_file
from focalroute.evaluate.job_engine import open_engine
from focalroute.evaluate.replay import FeedbackKind
from focalroute.evaluate.report import evaluate, show
from focalroute.evaluate.report_page.page import check_extra, html
from focalroute.evaluate.table import SplitKind
from focalroute.policy.names import named


def evaluate_command(
    log: Path,
    pool: Path,
    *,
    split: str = "stream",
    train_fraction: float = 0.8,
    seed: int = 0,
    seeds: int = 1,
    operating_points: str = "",
    policy: str = "",
    feedback: str = "label",
    show_task: bool = False,
    presets: Sequence[str] = (),
    engine: str = "local",
    json_file: Path | None = None,
    html_file: Path | None = None,
) -> None:
    """Evaluate (see `focalroute.evaluate.report.evaluate`) with a progress bar, print the table, write JSON and page.

    The JSON on standard output ("-") takes the table's place.

    Raises:
        ConfigError: an argument, the log or the pool is wrong, a file cannot be written, or the page's extra is
            missing.
        PolicyError: the policy does not pass its checks.
    """
    for file in (json_file, html_file):
        check_writable(file)
    if html_file is not None:
        check_extra()
    with open_engine(engine) as opened:
        report = evaluate(
            log,
            pool,
            split_by=cast(SplitKind, split),  # checked there, like everything else
            train_fraction=train_fraction,
            seed=seed,
            seeds=seeds,
            operating_points=_ratios(operating_points) if operating_points else None,
            policy=named(policy) if policy else None,
            feedback=cast(FeedbackKind, feedback),
            show_task=show_task,
            presets=presets,
            engine=opened,
            progress=True,
        )
    found = report.to_dict()
    if json_file != STANDARD_OUTPUT:
        show(report)
    if json_file is not None:
        write_file(json_file, json.dumps(found, indent=2, allow_nan=False) + "\n")
    if html_file is not None:
        write_file(html_file, html(eval_page(read_eval(found, str(log)))))


def _ratios(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"operating_points: give numbers separated by commas, not {text!r}") from None
