"""Runs ``focalroute report``, and makes the page's section on a policy folder's updates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.files import refusing
from focalroute.evaluate.eval_page import eval_page
from focalroute.evaluate.eval_result import read_eval
from focalroute.evaluate.output import LATEST, STANDARD_OUTPUT, check_writable, write_file
from focalroute.evaluate.report_page.drawings import Series, VersionHistories
from focalroute.evaluate.report_page.history import read_history
from focalroute.evaluate.report_page.page import Page, Section, TextTable, check_extra, html, pngs
from focalroute.evaluate.report_page.store_page import store_page
from focalroute.learn.trial import read_trial
from focalroute.policy import bundle
from focalroute.policy.sequential import load_served
from focalroute.store import display_name, is_redis, open_store, require_existing

#: Every figure of an update: key -> (title, meaning) (see `focalroute.learn.update_report.Diagnostics`).
MEANINGS: Mapping[str, tuple[str, str]] = {
    "gain": (
        "gain, points",
        "Its gain over the version that served, measured in the trial: 1 is one more right answer in 100, after cost. "
        "The version is published once the gain is significantly above 0.",
    ),
    "effective_sample_size": (
        "effective sample size",
        "How many fresh decisions the stored ones are worth. Far below their number: the policy has changed since.",
    ),
    "approx_kl": (
        "approximate KL",
        "How much the Decider changed in this update, which stops at target_kl in the hyperparameters. Always at the "
        "limit: the steps are large.",
    ),
    "clip_fraction": ("clip fraction", "Share of decisions whose ratio was clipped. Far above 0.3: too large a step."),
    "entropy": (
        "entropy, nats",
        "How undecided the Decider is, summed over the endpoints. Falling to 0: it no longer explores, and stops "
        "learning.",
    ),
    "explained_variance": (
        "explained variance",
        "How well the critic predicts the worth of an answer: 1 perfectly, 0 like the mean, below 0 worse than that. "
        "Low in the first updates.",
    ),
    "fusion_loss_after": (
        "Fusion loss, nats",
        "Mean surprise at the feedback after the update. Lower is better; compare it with the loss before.",
    ),
    "fusion_kl": ("Fusion KL", "How far the Fusion's answers moved in this update."),
    "fusion_loss": ("Fusion loss before", "The same surprise before the update."),
    "value_loss": ("value loss", "The critic's mean squared error, halved, before the update."),
    "policy_loss": (
        "policy loss",
        "The surrogate that was minimised. Its level means nothing, as advantages are normalised.",
    ),
    "decisions": ("decisions", "Sampled decisions that it learned from; 0: nothing was explored, so only the Fusion."),
    "episodes": ("answers", "Rated answers that it learned from."),
}
_MOST_DRAWN = 8  # the first of these figures are also drawn


def updates_section(folder: str) -> Section:
    """Make the section on the versions of a folder that updates made.

    Raises:
        ConfigError: there is no such folder.
        PolicyError: a version does not pass its checks.
    """
    if not Path(folder).is_dir():
        raise ConfigError(
            f"{folder}: there is no such folder; give the folder of policy bundles that updates publish to"
        )
    if not bundle.versions(folder):
        return Section(f"{folder} holds no policy yet.")
    name, published = Path(folder).name, _published(folder)
    if not published:
        return Section(f"{name} has no update that won its trial yet; focalroute policy show lists the others.")
    drawn = list(MEANINGS)[:_MOST_DRAWN]
    lines = [Series(MEANINGS[key][0], [metrics[key] for metrics in published.values()]) for key in drawn]
    latest = max(published)
    rows = [(title, _figure(published[latest][key]), meaning) for key, (title, meaning) in MEANINGS.items()]
    drawing = None
    if len(published) > 1:
        drawing = VersionHistories(tuple(published), lines)
    return Section(
        f"The {len(published)} versions in {name} that updates published. focalroute policy show lists all versions, "
        f"and what became of them. The table has the figures of version {latest}.",
        drawing,
        TextTable(("", f"version {latest}", "what it means"), rows, words=True),
    )


def _published(folder: str) -> dict[int, Mapping[str, Any]]:
    """Return version -> its update's metrics and its gain, for the versions that were published after a trial."""
    record = read_trial(folder, bundle.current(folder), None).record
    gains = {entry["version"]: entry["gate"]["gain"] for entry in record if entry["outcome"] == "published"}
    kept = sorted(gains.keys() & set(bundle.versions(folder)))
    return {version: {**load_served(folder, version).metrics, "gain": gains[version]} for version in kept}


def _figure(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


_SQLITE = b"SQLite format 3\0"


def report_command(
    evaluation: Path | None,
    store: str | None,
    *,
    policy: str | None = None,
    last: int | None = None,
    out: Path,
    png: Path | None = None,
    as_json: bool = False,
) -> None:
    """Write the page about a store or an evaluation, and its drawings as PNGs, and print a summary.

    Args:
        evaluation: a report written by ``focalroute eval --json``.
        store: a SQLite file, or a redis:// address; give either this or ``evaluation``.
        policy: a policy folder, for the section on its updates.
        last: how many of the store's latest answers to read; None: 10,000.
        out: the page; "-" is standard output, which then gets nothing else.
        png: folder for the PNGs, which may be new; None: no PNGs.
        as_json: whether to print the summary as JSON.

    Raises:
        ConfigError: an argument or a given file is invalid, or a file cannot be written.
        PolicyError: a version in the policy folder does not pass its checks.
        StoreError: the store cannot be read.
    """
    check_extra()
    check_writable(out, evaluation, store)
    updates, written = None, f"{out}: written"
    if policy is not None:
        updates = updates_section(policy)
    page = _page(evaluation, store, last, updates)
    write_file(out, html(page))
    drawn: list[Path] = []
    if png is not None:
        drawn = _write_pngs(page, png)
        written += f", and {len(drawn)} PNGs to {png}"
    missing = {name: section.caption for name, section in page.sections.items() if section.empty}
    if out == STANDARD_OUTPUT:
        return
    if as_json:
        summary = {"page": str(out), "pngs": [str(file) for file in drawn], "missing": missing}
        print(json.dumps(summary, indent=2))
        return
    print(page.lead)
    print(written)
    if missing:
        print(f"sections without data, which say what they need: {', '.join(missing)}")


def _page(evaluation: Path | None, store: str | None, last: int | None, updates: Section | None) -> Page:
    if (evaluation is None) == (store is None):
        raise ConfigError("report: give EVAL.json, the file that focalroute eval --json wrote, or --store STORE")
    if evaluation is not None:
        if last is not None:
            raise ConfigError("report: --last applies only with --store; leave it out")
        return eval_page(read_eval(_json(evaluation), str(evaluation)), updates)
    assert store is not None  # noqa: S101 - checked above
    with closing(open_store(require_existing(store))) as opened:
        name = display_name(store)
        if not is_redis(store):
            name = Path(store).name
        return store_page(read_history(opened.recent(last or LATEST)), name, updates)


def _json(file: Path) -> object:
    with refusing(file, "read"):
        content = file.read_bytes()
    if content.startswith(_SQLITE):
        raise ConfigError(f"{file}: is a store; give it as --store {file}")
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError):
        raise ConfigError(f"{file}: is not JSON; give the file that focalroute eval --json wrote") from None
    return found


def _write_pngs(page: Page, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from None
    written = []
    for name, content in pngs(page):
        write_file(folder / f"{name}.png", content)
        written.append(folder / f"{name}.png")
    return written
