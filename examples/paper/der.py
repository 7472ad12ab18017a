"""DER beside self-correction and a fixed route, on simulated questions of two hops and of yes or no.

python -m examples.paper.der [--seeds 5] [--train 800] [--test 300] [--json FILE]

Every seed has models, questions and a training of its own. Training asks the simulated models in process, everything
that is scored goes through `focalroute.Ensemble` over HTTP. The settings of DER were chosen with other seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from focalroute.evaluate.sequential import Settings
from focalroute.live.command import simulated
from focalroute.live.report import show_live
from focalroute.live.strategies import Plan

TOPICS = ("multi-hop", "yes-no")
FIRST_SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--train", type=int, default=800, help="queries that DER learns from")
    parser.add_argument("--test", type=int, default=300, help="queries that are scored, for each seed")
    parser.add_argument("--topic", choices=TOPICS, action="append", help="only this one; may be given again")
    parser.add_argument("--json", type=Path, help="write the reports there")
    parser.add_argument("--quick", action="store_true", help="one seed of a few questions: does it work?")
    options = parser.parse_args()
    plan = Plan()
    if options.quick:
        options.seeds, options.train, options.test, options.topic = 1, 10, 4, TOPICS[1:]
        plan = Plan(most=2, alphas=(0.3,), settings=Settings(passes=1, hidden=8))
    reports = {}
    for topic in options.topic or TOPICS:
        seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
        report = simulated(topic, train=options.train, test=options.test, seeds=seeds, plan=plan, title=topic)
        show_live(report)
        reports[topic] = report.to_dict()
        if options.json is not None:
            options.json.write_text(json.dumps(reports, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
