"""One process serves; another updates the policy from time to time, and the first adopts it between two asks."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from focalroute import Ensemble
from focalroute.sim import SimulatedPool, stream

UPDATE = [sys.executable, "-m", "focalroute", "update", "--json"]


def update(store: Path, policy: Path) -> None:
    """Run what cron would: focalroute update --store ... --policy ... --json."""
    command = [*UPDATE, "--store", str(store), "--policy", str(policy), "--seed", "0"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"  {report['status']}: version {report['version']}; {report['reason']}")


with tempfile.TemporaryDirectory() as name, SimulatedPool() as pool:
    store, policy = Path(name) / "focalroute.db", Path(name) / "policy"
    policy.mkdir()
    with Ensemble(pool.endpoints, store=store, policy=policy, seed=0) as ensemble:
        for day in range(3):
            right, versions = 0, set()
            for question in stream(160, seed=day):
                answer = ensemble.ask(question.text, choices=question.choices)
                ensemble.feedback(answer, label=question.answer)
                right += answer.choice == question.label
                versions.add(answer.receipt.policy_version)
            print(f"day {day + 1}: {right / 1.6:.0f} % right, by version {', '.join(map(str, sorted(versions)))}")
            update(store, policy)
            time.sleep(1.1)  # a new version is looked for once a second, while asks come in
