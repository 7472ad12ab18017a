"""Describes the updates of a policy folder, with the meaning of every figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from focalroute.evaluate.report_page.drawings import Series, VersionHistories
from focalroute.evaluate.report_page.page import Section, TextTable
from focalroute.policy import bundle
from focalroute.policy.der import load_served

#: The caption where no folder is given.
NEEDED = "Give --policy FOLDER, the folder that updates are published to, to see what each of its versions learned."

#: Every figure of an update: its name here, and what it means (see `focalroute.learn.update_report.Diagnostics`).
MEANINGS: Mapping[str, tuple[str, str]] = {
    "gain": (
        "gain, points",
        "What the gate expects of the new policy against the old one on answers held out: 1 is one more right answer "
        "in 100, cost counted. Surely below -1, and it is not published.",
    ),
    "effective_sample_size": (
        "effective sample size",
        "How many fresh decisions the stored ones are worth. Far below their number: the policy has moved on since.",
    ),
    "approx_kl": (
        "approximate KL",
        "How far the Decider went in this update. It stops at the limit in the hyperparameters (target_kl); always "
        "there: the steps are large.",
    ),
    "clip_fraction": ("clip fraction", "Share of decisions whose step was cut off. Far over 0.3: too large a step."),
    "entropy": (
        "entropy, nats",
        "How undecided the Decider is over whom to ask, added up over the endpoints. Falling to 0: it no longer "
        "explores, and learns no more.",
    ),
    "explained_variance": (
        "explained variance",
        "How well the critic foresees what an answer will be worth: 1 perfectly, 0 no better than always saying the "
        "mean, below 0 worse. Low in the first updates.",
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
_DRAWN = 8


def updates_section(folder: str) -> Section:
    """Describe the versions of a folder that an update made.

    Raises:
        PolicyError: a version does not pass its checks.
    """
    name = Path(folder).name
    found = {version: metrics for version in bundle.versions(folder) if (metrics := _metrics(folder, version))}
    if not found:
        return Section(f"{name} holds no version that an update made: give feedback, then run focalroute update.")
    drawn = list(MEANINGS)[:_DRAWN]
    lines = [Series(MEANINGS[key][0], [metrics[key] for metrics in found.values()]) for key in drawn]
    latest = max(found)
    rows = [(title, _shown(found[latest][key]), meaning) for key, (title, meaning) in MEANINGS.items()]
    return Section(
        f"The {len(found)} versions that {name} keeps of its updates. An update that was rejected, or had too little "
        "evidence, makes no version: focalroute update says so, and a serving process logs it.",
        VersionHistories(tuple(found), lines) if len(found) > 1 else None,
        TextTable(("", f"version {latest}", "what it means"), rows, words=True),
    )


def _metrics(folder: str, version: int) -> Mapping[str, Any] | None:
    """Read the metrics of an update's version; None where something else made the version."""
    metrics = load_served(folder, version).metrics
    gate = metrics.get("gate")
    if not isinstance(gate, Mapping):
        return None
    return {**metrics, "gain": gate["gain"]}


def _shown(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
