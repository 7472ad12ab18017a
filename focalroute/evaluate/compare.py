"""``focalroute policy compare``: what the command line calls."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import closing

from focalroute.evaluate.offpolicy import (
    ESTIMATORS,
    MEASURES,
    UNTRIED,
    Estimate,
    Estimates,
    PolicyComparison,
    PolicyValue,
    compare_policies,
)
from focalroute.learn.update_report import ENOUGH
from focalroute.policy.references import load_reference
from focalroute.store import display_name, open_store, require_existing

#: How many of a store's latest answers are looked at.
LATEST = 10_000

_PIPED_WIDTH = 120
_TITLES = {"accuracy": "accuracy, points", "cost": "cost, % of asking all", "reward": "reward, points"}
_UNITS = {"accuracy": 1.0, "cost": 100.0, "reward": 1.0}


def compare_command(a: str, b: str, store: str, *, seed: int = 0, as_json: bool = False) -> None:
    """Compare two policies (see `focalroute.cli.policy.describe`) on a store's answers, and print the estimates.

    Raises:
        ConfigError: a policy or the store does not exist, both policies are the same, or no answer can count.
        PolicyError: a policy does not pass its checks.
        StoreError: the store cannot be read.
    """
    first, second = load_reference(a), load_reference(b)
    with closing(open_store(require_existing(store))) as opened:
        found = compare_policies(opened.recent(LATEST), first, second, seed=seed)
    names = {"a": f"{a} (version {first.version})", "b": f"{b} (version {second.version})"}
    if as_json:
        said = {"store": display_name(store), "seed": seed, "policies": names, "verdict": _verdict(found)}
        print(json.dumps({**said, **dataclasses.asdict(found)}, indent=2, allow_nan=False))
    else:
        _show(display_name(store), names, found)


def _show(store: str, names: dict[str, str], found: PolicyComparison) -> None:
    print(f"{store}: {found.episodes} of {found.rewarded} rewarded answers, {found.labelled} with a label")
    for key, value in (("a", found.a), ("b", found.b)):
        print(f"{key.upper()}: {names[key]}; {_evidence(value, found.episodes)}")
    if found.a.enough or found.b.enough:
        _show_estimates((found.a.estimates, found.b.estimates, found.difference))
    print(_verdict(found))
    for note in _notes(found):
        print(f"note: {note}")


def _show_estimates(columns: Sequence[Estimates | None]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=SIMPLE)
    for column in ("", "", "A", "B", "B minus A"):
        grid.add_column(column, justify="right" if column else "left", no_wrap=True)
    for measure in MEASURES:
        for how in ESTIMATORS:
            title = _TITLES[measure] if how == ESTIMATORS[0] else ""
            cells = [_cell(None if part is None else part[measure][how], _UNITS[measure]) for part in columns]
            grid.add_row(title, how, *cells)
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(grid)


def _evidence(value: PolicyValue, episodes: int) -> str:
    size = f"effective sample size {value.effective_sample_size:.0f} of {episodes}, mean ratio {value.mean_ratio:.2f}"
    return size if value.enough else f"{size}: insufficient evidence"


def _cell(one: Estimate | None, unit: float) -> str:
    if one is None:
        return "-"
    return f"{one.value * unit:.2f} ({one.low * unit:.2f} to {one.high * unit:.2f})"


def _verdict(found: PolicyComparison) -> str:
    """Which is better, by the doubly robust estimate of the reward."""
    if found.difference is None:
        lacking = [name for name, value in (("A", found.a), ("B", found.b)) if not value.enough]
        return (
            f"insufficient evidence on {' and '.join(lacking)}: an effective sample size under {ENOUGH:.0f}, or a "
            f"mean ratio further from 1 than {UNTRIED:g}, says nothing; gather more answers, or serve with more "
            "exploration"
        )
    gain = found.difference["reward"]["doubly-robust"]
    surely = "surely better" if gain.low > 0 else "surely worse" if gain.high < 0 else "neither surely better nor worse"
    return f"B is {surely} than A: {gain.value:+.2f} points of reward ({gain.low:+.2f} to {gain.high:+.2f})"


def _notes(found: PolicyComparison) -> list[str]:
    notes = []
    if found.greedy:
        notes.append(f"{found.greedy} answers decided greedily have no probability to weigh by, and are left out")
    if found.unread:
        notes.append(f"{found.unread} answers seen through another layout of the observation are left out")
    for name, value in (("A", found.a), ("B", found.b)):
        if value.changed:
            guessed = f", {value.guessed} of them of a worth only guessed from bare rewards" if value.guessed else ""
            notes.append(
                f"{name}'s Fusion would have given {value.changed} other answers{guessed}; "
                "what it would have shown the Decider between rounds is left out"
            )
    return notes
