"""The pool file of three small models: everything that plays on it runs on vLLM and llama-server, with tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focalroute.cli.app import app
from focalroute.core.pool import load_pool
from focalroute.sim.process import pool_toml
from tests.real.servers import Server

pytestmark = pytest.mark.real

POOL = Path(__file__).resolve().parents[2] / "examples" / "paper" / "small_models.pool.toml"


def test_chains_and_der_are_played_live(
    tmp_path: Path, vllm_server: Server, llama_server: Callable[[int], Server]
) -> None:
    """Their weights are random, and so their answers; they are asked, billed and compared all the same."""
    served = [vllm_server, llama_server(0), llama_server(1)]
    pool = [
        replace(endpoint, base_url=server.base_url, model=server.model)
        for endpoint, server in zip(load_pool(POOL).endpoints, served, strict=True)
    ]
    short = pool_toml(pool).replace("[[endpoint]]", "[[endpoint]]\nparams = { max_tokens = 8 }")
    (tmp_path / "pool.toml").write_text(short)
    questions = [{"id": f"q{i}", "prompt": f"What is {i} + {i}?", "label": str(2 * i)} for i in range(6)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    asked = ["eval", "--live", str(tmp_path / "pool.toml"), "--queries", str(tmp_path / "queries.jsonl")]
    found = tmp_path / "report.json"
    result = CliRunner().invoke(app, [*asked, "--quality", "rouge-l", "--json", str(found)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(found.read_text())["methods"]}
    assert {"plurality", "round-robin @ 3", "self-correction mistral-7b @ 2", "der @ alpha 0.1"} <= rows.keys()
    assert rows["plurality"]["calls_per_query"] == 3
    assert rows["plurality"]["cost_usd_per_query"] > rows["single qwen-2.5-3b"]["cost_usd_per_query"] > 0
