"""Simulates the gate of updates: how often it publishes challengers of known gain.

    python -m tests.benchmarks.gate [--runs 400] [--chains 100]

Champion and challenger differ on a share of the questions. There each takes its own way with probability 0.9, else the
other's. The challenger's way is right more or less often than the champion's, depending on the gain, and costs a tenth
of asking all more, which the gain includes at a cost weight of 0.1. On all other questions both are right with
probability 0.8. The challenger decides its share of the asks; after every 100 feedbacks there is a verdict, by the code
that is used in service.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from focalroute.core.records import F64
from focalroute.learn.gate import POINTS, WIDTH, balanced, paired
from focalroute.learn.trial import BUDGET, Counted, verdict
from focalroute.policy.slot import CHALLENGER_SHARE

GAINS = (-2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
DIFFERENT = (0.05, 0.1, 0.2)
EVERY = 100
UPDATES = 100

_PRICE, _DEARER, _USUAL = 0.1, 0.1, 0.9


class Outcome(NamedTuple):
    """Whether the challenger was published, and the number of feedbacks until the verdict."""

    published: bool
    after: int


def answers(rng: np.random.Generator, number: int, gain: float, different: float, share: float) -> F64:
    """Simulate the evidence from this number of answers in a trial, for a challenger with this gain in points."""
    better = gain / (2 * POINTS) / (different * (2 * _USUAL - 1)) + _PRICE * _DEARER / 2
    apart = rng.random(number) < different
    theirs = rng.random(number) < share
    usual = rng.random(number) < _USUAL
    new_way = np.where(theirs, usual, ~usual)  # what either does more often is the other's exception
    chances = np.log(np.where(new_way, 1 - _USUAL, _USUAL)), np.log(np.where(new_way, _USUAL, 1 - _USUAL))
    champion, challenger = (np.where(apart, chance, 0.0) for chance in chances)
    accuracy = np.where(apart, 0.5 + better * np.where(new_way, 0.5, -0.5), 0.8)
    u = 2.0 * (rng.random(number) < accuracy) - 1
    v = u - _PRICE * (0.2 + _DEARER * (apart & new_way))
    rho, sigma = balanced(champion, challenger, share)
    values = np.zeros((number, WIDTH))
    values[:, :3] = paired(rho, sigma, v, v, np.full(number, _PRICE))
    return values


def trial(rng: np.random.Generator, gain: float, different: float, share: float) -> Outcome:
    """Simulate a trial from its first feedback to its verdict."""
    values = answers(rng, BUDGET, gain, different, share)
    for number in range(EVERY, BUDGET + 1, EVERY):
        outcome, _ = verdict(Counted(values=values[:number]))
        if outcome != "open":
            return Outcome(outcome == "better", number)
    raise AssertionError("the budget ends every trial")


def chain(rng: np.random.Generator) -> tuple[float, int]:
    """Simulate `UPDATES` updates, most of them worthless or harmful; return the total gain and the number published."""
    total, published = 0.0, 0
    for gain in rng.normal(-0.3, 0.7, UPDATES):
        if trial(rng, gain, 0.1, CHALLENGER_SHARE).published:
            total, published = total + gain, published + 1
    return total, published


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--chains", type=int, default=100)
    given = parser.parse_args()
    head = " | ".join(f"differ in {100 * share:.0f} %" for share in DIFFERENT)
    print(f"| true gain, points | {head} |\n|---{'|---' * len(DIFFERENT)}|")
    for gain in GAINS:
        cells = []
        for different in DIFFERENT:
            rng = np.random.default_rng(0)
            found = [trial(rng, gain, different, CHALLENGER_SHARE) for _ in range(given.runs)]
            published = np.mean([one.published for one in found])
            cells.append(f"{100 * published:.1f} %, {np.median([one.after for one in found]):.0f}")
        print(f"| {gain:+.1f} | {' | '.join(cells)} |", flush=True)
    rng = np.random.default_rng(0)
    chains = [chain(rng) for _ in range(given.chains)]
    totals = np.array([total for total, _ in chains])
    print(
        f"\n{given.chains} chains of {UPDATES} updates with true gains of -0.3 on average (standard deviation 0.7): "
        f"{np.mean([n for _, n in chains]):.1f} published, {totals.mean():+.2f} points in the mean, "
        f"{totals.min():+.2f} in the worst, {100 * np.mean(totals < 0):.0f} % of chains below their start"
    )


if __name__ == "__main__":
    main()
