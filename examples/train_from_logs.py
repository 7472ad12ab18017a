"""From a dataset to a trained policy: what `focalroute collect` and `focalroute train` do, then the policy served."""

import json
import tempfile
from pathlib import Path

from focalroute import Ensemble
from focalroute.cli.collect import collect
from focalroute.cli.train import train
from focalroute.sim import SimulatedPool, stream
from focalroute.sim.process import pool_toml

with tempfile.TemporaryDirectory() as name, SimulatedPool() as pool:
    folder = Path(name)
    questions = [{"id": q.id, "prompt": q.text, "choices": q.choices, "label": q.label} for q in stream(100, seed=1)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (folder / "pool.toml").write_text(pool_toml(pool.endpoints))

    # focalroute collect questions.jsonl --pool pool.toml --out log.jsonl --max-usd 1
    collect(str(folder / "questions.jsonl"), folder / "log.jsonl", folder / "pool.toml", max_usd="1")
    # focalroute train log.jsonl --pool pool.toml --out policy/
    train([folder / "log.jsonl"], [folder / "pool.toml"], folder / "policy", iterations=10)

    right, usd, calls, asked = 0, 0.0, 0, list(stream(40, seed=2))
    with Ensemble(pool.endpoints, policy=folder / "policy", seed=0) as ensemble:
        for q in asked:
            answer = ensemble.ask(q.text, choices=q.choices)
            right += answer.choice == q.label
            usd += float(answer.cost or 0)
            calls += len(answer.receipt.calls)
    print(f"version {answer.receipt.policy_version}: {right} of {len(asked)} new questions right,")
    print(f"{calls / len(asked):.1f} calls and ${usd / len(asked):.6f} a question")
