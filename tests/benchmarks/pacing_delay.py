"""Measures how concurrent asks impair the pacing, on simulated policies without calls.

``python -m tests.benchmarks.pacing_delay`` prints how far the mean cost of 5,000 queries is from its target, by the
number of concurrent asks, for 200 random responses of a policy's cost to the cost weight (`tests.responses`).
"""

from __future__ import annotations

import statistics

from tests.responses import drawn

UNDER_WAY = (1, 4, 16, 64, 128, 256)
RESPONSES = 200


def main() -> None:
    """Print the table."""
    print("| asks under way | off by, median | 90 % of them at most | at most | within 2 % |\n|---|---|---|---|---|")
    for under_way in UNDER_WAY:
        off = [abs(response.mean(under_way) - 1) for response in drawn(RESPONSES, seed=5)]
        near = sum(one <= 0.02 for one in off) / len(off)
        figures = (statistics.median(off), statistics.quantiles(off, n=10)[-1], max(off))
        print(f"| {under_way} | {' | '.join(f'{one:.2%}' for one in figures)} | {near:.1%} |")


if __name__ == "__main__":
    main()
