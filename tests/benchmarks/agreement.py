"""Compares ways to answer in open text, by quality and cost: choosing a reply by agreement, and synthesis.

    python -m tests.benchmarks.agreement [--requests 300] [--seeds 5]

Five simulated writers describe towns, with five facts in each reply; a reply is worth the share of right facts. With
uncorrelated errors each writer makes its own; with shared errors, four of five errors are made by all in the same
words. Every endpoint is asked, so only what is made of the replies differs. Calls go over HTTP; the Fusion is the
shipped one, without feedback. One of the five writes the synthesis. Prints Markdown tables of the worth in points;
intervals are Student's over the seeds, differences are paired by seed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples.paper.table6 import interval
from focalroute import Answer, Ensemble
from focalroute.sim import Brief, SimulatedModel, SimulatedPool, prose_requests
from tests.policies import ask_all

__all__ = ["SETTINGS"]

#: The skills of the five writers, and the share of errors that they have in common.
SETTINGS = {
    "equal, uncorrelated": ((0.75,) * 5, 0.0),
    "unequal, uncorrelated": ((0.6, 0.65, 0.7, 0.75, 0.8), 0.0),
    "equal, shared errors": ((0.75,) * 5, 0.8),
}


def rows_of(setting: str, seed: int, requests: int, policy: Path) -> dict[str, tuple[float, float]]:
    """Return row -> mean worth in [0, 1], and cost relative to that of one reply."""
    skills, correlation = SETTINGS[setting]
    models = [
        SimulatedModel(f"writer-{i}", skill=skill, kin="kin", correlation=correlation, seed=seed)
        for i, skill in enumerate(skills)
    ]
    briefs = list(prose_requests(requests, seed, ["truthful"]))

    current: list[Brief] = []

    def facts(text: str) -> list[float]:
        """Embed a reply by the facts in it, whatever the wording: an upper bound for comparing replies."""
        brief = current[0]
        vector = []
        for stated, point in zip(brief.said(text), brief.points, strict=True):
            vector += [float(stated == option) for option in range(len(point.options))]
        return vector

    with SimulatedPool(models) as pool:
        common = {"endpoints": pool.endpoints, "policy": policy, "explore": False}
        answers: dict[str, list[Answer]] = {"by letters": [], "by what is said": [], "synthesised": []}
        with (
            Ensemble(**common, synthesiser="writer-4") as ensemble,  # type: ignore[arg-type]
            Ensemble(**common, embedder=facts) as by_facts,  # type: ignore[arg-type]
        ):
            for brief in briefs:
                current[:] = [brief]
                answers["by letters"].append(ensemble.ask(brief.request))
                answers["by what is said"].append(by_facts.ask(brief.request))
                answers["synthesised"].append(ensemble.ask(brief.request, combine="synthesise"))
    worth = np.array(
        [
            [b.quality(reply.text or "") for reply in sorted(a.replies, key=lambda reply: reply.endpoint)]
            for b, a in zip(briefs, answers["by letters"], strict=True)
        ]
    )
    one_reply = float(sum(a.cost or 0 for a in answers["by letters"])) / 5
    rows = {
        "anybody": (float(worth.mean()), 1.0),
        "the best single, known afterwards": (float(worth.mean(axis=0).max()), 1.0),
    }
    for name, given in answers.items():
        mean = statistics.fmean(b.quality(a.text) for b, a in zip(briefs, given, strict=True))
        rows[name] = (mean, float(sum(a.cost or 0 for a in given)) / one_reply)
    rows["the best reply of each request (not to be beaten by choosing)"] = (float(worth.max(axis=1).mean()), 5.0)
    return rows


def main() -> None:
    """Print a table for each setting."""
    parser = argparse.ArgumentParser(description="Open text: choosing by agreement, and synthesising.")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        policy = ask_all(Path(folder) / "policy")
        for setting in SETTINGS:
            _print(setting, [rows_of(setting, seed, options.requests, policy) for seed in range(options.seeds)])


def _print(setting: str, found: Sequence[dict[str, tuple[float, float]]]) -> None:
    print(f"\n{setting}:\n\n| | worth | minus the best single's | calls' cost, of one |\n|---|---|---|---|")
    for name in found[0]:
        worth = [100 * rows[name][0] for rows in found]
        best = [100 * rows["the best single, known afterwards"][0] for rows in found]
        ahead = [a - b for a, b in zip(worth, best, strict=True)]
        cost = statistics.fmean(rows[name][1] for rows in found)
        print(f"| {name} | {interval(worth)} | {interval(ahead)} | {cost:.1f} |")


if __name__ == "__main__":
    main()
