"""``focalroute eval``: what the command line calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from focalroute.errors import ConfigError
from focalroute.evaluate.points import OPERATING_POINTS
from focalroute.evaluate.replay import FeedbackKind
from focalroute.evaluate.report import SplitKind, evaluate, show
from focalroute.policy.bundle import Policy, cold, load

__all__ = ["evaluate_command"]


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
    json_file: Path | None = None,
) -> None:
    """Evaluate (see `focalroute.evaluate.report.evaluate`) with a progress bar, print the table, write the JSON.

    Raises:
        ConfigError: an argument, the log or the pool is wrong, or the JSON cannot be written.
    """
    report = evaluate(
        log,
        pool,
        split_by=cast(SplitKind, split),  # checked there, like everything else
        train_fraction=train_fraction,
        seed=seed,
        seeds=seeds,
        operating_points=_ratios(operating_points),
        policy=_policy(policy),
        feedback=cast(FeedbackKind, feedback),
        show_task=show_task,
        presets=presets,
        progress=True,
    )
    show(report)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"{json_file}: cannot be written: {error.strerror}") from None


def _ratios(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else OPERATING_POINTS
    except ValueError:
        raise ConfigError(f"operating_points: give numbers separated by commas, not {text!r}") from None


def _policy(text: str) -> Policy | None:
    if not text:
        return None
    return cold() if text == "cold" else load(text)
