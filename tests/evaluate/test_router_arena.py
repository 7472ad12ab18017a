"""RouterArena's format, by the rules of its ``check_config_prediction_files.py`` (July 2026), written down again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.router_arena.router import ArenaRouter
from focalroute import ConfigError, Endpoint
from focalroute.sim import stream

POOL = [
    Endpoint("mini", model="gpt-4o-mini", input_usd_per_1m=0.15, output_usd_per_1m=0.6),
    Endpoint("haiku", model="claude-3-haiku-20240307", input_usd_per_1m=0.25, output_usd_per_1m=1.25),
    Endpoint("own", model="qwen-local"),
]
PROMPTS = [question.text for question in stream(30, seed=4)]


def dataset(folder: Path) -> Path:
    """As ``prep_datasets.py`` writes it; some entries have a formatted prompt besides."""
    rows = [{"global index": f"Set_{n}", "prompt": prompt} for n, prompt in enumerate(PROMPTS)]
    rows[0]["prompt_formatted"] = f"Answer with a letter. {PROMPTS[0]}"
    path = folder / "router_data_10.json"
    path.write_text(json.dumps(rows), "utf-8")
    return path


def problems(folder: Path, name: str, split: Path) -> list[str]:
    """What the validator says of these files; whether it knows the models and their prices stands in its own files."""
    config = json.loads((folder / "config" / f"{name}.json").read_text("utf-8"))
    predictions = json.loads((folder / "predictions" / f"{name}.json").read_text("utf-8"))
    known = {row["global index"]: row for row in json.loads(split.read_text("utf-8"))}
    models = set(config["pipeline_params"]["models"])
    found = [] if len(predictions) == len(known) else ["size"]
    for one in predictions:
        row = known.get(one.get("global index"))
        if row is None:
            found.append("global index")
        elif one.get("prompt") != (row.get("prompt_formatted") or row["prompt"]):
            found.append("prompt")
        if one.get("prediction") not in models:
            found.append("prediction")
    return found


@pytest.mark.parametrize("policy", [None, "best-single", "random"])
def test_a_submission_passes_the_rules(tmp_path: Path, policy: str | None) -> None:
    split = dataset(tmp_path)
    ArenaRouter(POOL, policy).export(split, tmp_path, "mine")
    assert problems(tmp_path, "mine", split) == []
    costs = json.loads((tmp_path / "cost" / "mine.json").read_text("utf-8"))
    assert costs["gpt-4o-mini"] == {"input_token_price_per_million": 0.15, "output_token_price_per_million": 0.6}
    assert "qwen-local" not in costs


def test_the_same_prompt_has_the_same_model_and_money_matters() -> None:
    """Whatever was asked before; where nothing counts but money it is the cheapest."""
    first = [ArenaRouter(POOL).choose(prompt) for prompt in PROMPTS[:8]]
    router = ArenaRouter(POOL)
    assert [router.choose(prompt) for prompt in PROMPTS[:8][::-1]][::-1] == first
    assert {ArenaRouter(POOL[:2], cost_weight=1e9).choose(prompt) for prompt in PROMPTS} == {"gpt-4o-mini"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "give a list of entries"),
        ('[{"global index": "a"}]', "entry 0: lacks 'global index' or its prompt"),
        ('[{"global index": "a", "prompt": "x"}, {"global index": "a", "prompt": "y"}]', "entry 1: .* is there twice"),
    ],
)
def test_a_wrong_dataset_is_named(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(ConfigError, match=says):
        ArenaRouter(POOL).export(tmp_path / "data.json", tmp_path, "mine")
    assert not (tmp_path / "predictions").exists()


@pytest.mark.parametrize(
    ("pool", "policy", "says"),
    [
        ([*POOL, Endpoint("again", model="qwen-local")], None, "'qwen-local' is there 2 times"),
        (POOL, "self-correction", "RouterArena takes one for each query"),
        (POOL, "majority", "did you mean 'plurality'"),
    ],
)
def test_the_error_says_what_cannot_be_submitted(pool: Any, policy: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ArenaRouter(pool, policy)
