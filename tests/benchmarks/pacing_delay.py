"""How asks under way impair the pacing: 5,000 queries each, over synthetic policies and changes, without calls.

``python -m tests.benchmarks.pacing_delay`` prints how far the mean cost is from its target, for 200 responses to the
cost weight at random (`tests.responses`), by how many asks are under way at a time.
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
