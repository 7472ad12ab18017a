"""Train a policy on recorded answers, then serve it: what `focalroute train LOG --pool POOL --out policy/` does."""

import json
import tempfile
from pathlib import Path
from typing import Any

from focalroute import Ensemble
from focalroute.evaluate.train_command import train_command
from focalroute.sim import SimulatedModel, SimulatedPool, default_models, stream
from focalroute.sim.models import distribution


def outputs(
    models: tuple[SimulatedModel, ...], question: str, topic: str, choices: list[str], label: int
) -> dict[str, Any]:
    """What each model answers, as a log holds it."""
    found: dict[str, Any] = {}
    for model in models:
        mass = distribution(model, question, topic, choices, label)
        answer = mass.index(max(mass))
        found[model.name] = {"answer": answer, "probabilities": mass, "prompt_tokens": 80, "completion_tokens": 4}
    return found


models = default_models()
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    lines, tables = [], []
    for number, q in enumerate(stream(300, seed=1)):
        line = {"id": str(number), "prompt": q.text, "choices": q.choices, "label": q.label}
        lines.append(json.dumps(line | {"outputs": outputs(models, q.text, q.topic, list(q.choices), q.label)}))
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    for model in models:
        tables.append(f'[[endpoint]]\nname = "{model.name}"\nmodel = "{model.name}"\n')
        tables.append(f"input_usd_per_1m = {model.input_usd_per_1m}\noutput_usd_per_1m = {model.output_usd_per_1m}\n")
    (folder / "pool.toml").write_text("".join(tables))

    train_command(folder / "log.jsonl", folder / "pool.toml", folder / "policy", iterations=40)

    right, usd, calls, asked = 0, 0.0, 0, list(stream(60, seed=2))
    with SimulatedPool(models) as pool, Ensemble(pool.endpoints, policy=folder / "policy", seed=0) as ensemble:
        for q in asked:
            answer = ensemble.ask(q.text, choices=q.choices)
            right += answer.choice == q.label
            usd += float(answer.cost or 0)
            calls += len(answer.receipt.calls)
    print(f"version {answer.receipt.policy_version}: {right} of {len(asked)} new questions right,")
    print(f"{calls / len(asked):.1f} calls and ${usd / len(asked):.6f} a question")
