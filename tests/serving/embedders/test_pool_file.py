"""The ``[embedder]`` table of a pool file."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute import ConfigError, Endpoint, Ensemble, OnnxEmbedder
from focalroute.core.pool import load_pool
from focalroute.serving.embedders import embedder_from_pool_file
from focalroute.sim import SimulatedModel, SimulatedPool
from focalroute.sim.process import pool_toml
from tests.cli.calling import focalroute
from tests.serving.embedders.encoder import write_encoder
from tests.serving.pool_files import pool_of


def test_without_a_table_there_is_none(tmp_path: Path) -> None:
    path = pool_of(tmp_path, "")
    assert embedder_from_pool_file(load_pool(path), path) is None


def test_a_service_is_an_endpoint_that_generates_nothing(tmp_path: Path) -> None:
    path = pool_of(
        tmp_path, '[embedder]\nbase_url = "http://localhost:2/v1"\nmodel = "e5"\ninput_usd_per_1m = 0.02\n'
        "timeout_s = 1.5\nparams = { dimensions = 256 }",
    )  # fmt: skip
    found = embedder_from_pool_file(load_pool(path), path)
    assert isinstance(found, Endpoint)
    assert (found.name, found.model, found.timeout_s, found.params) == ("embedder", "e5", 1.5, {"dimensions": 256})
    assert found.price == (Decimal("0.02"), Decimal(0), Decimal("0.02"))


def test_files_are_relative_to_it(tmp_path: Path) -> None:
    write_encoder(tmp_path / "files")
    path = pool_of(tmp_path, '[embedder]\nonnx = "files/model.onnx"\ntokenizer = "files/tokenizer.json"')
    assert isinstance(embedder_from_pool_file(load_pool(path), path), OnnxEmbedder)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[embedder]", "model: required"),
        ('embedder = "e5"', r"embedder: write it as a table, \[embedder\]"),
        ('[embedder]\nmodel = "e5"', "base_url: give it and a model, or onnx and tokenizer"),
        ('[embedder]\nmodel = "e5"\nbase_url = "http://h/v1"\ndim = 3', "embedder: dim: unknown key"),
        ('[embedder]\nclient = "e5"', "client: a pool file cannot hold one"),
        ('[embedder]\nonnx = "m.onnx"', "tokenizer: required, the path of a file"),
        ('[embedder]\nonnx = "m.onnx"\nmodel = "e5"', "unknown key 'model'; a local encoder has"),
        ('[embedder]\nonnx = "m.onnx"\ntokenizer = "t.json"', "m.onnx: cannot be read"),
        ('[ensemble]\nembedder = "e5"', "unknown key 'embedder'"),
    ],
)
def test_errors_in_the_table_are_named(tmp_path: Path, table: str, says: str) -> None:
    path = pool_of(tmp_path, table)
    with pytest.raises(ConfigError, match=says) as raised:
        Ensemble.from_toml(path)
    assert str(path) in str(raised.value)


def test_an_embedder_given_in_code_wins(tmp_path: Path) -> None:
    path = pool_of(tmp_path, '[embedder]\nonnx = "missing.onnx"\ntokenizer = "missing.json"')
    with Ensemble.from_toml(path, embedder=lambda text: [1.0]) as ensemble:
        assert ensemble._async._embedding.name.endswith("<lambda>")


def test_ask_uses_it_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    with SimulatedPool([SimulatedModel("a", skill=0.9), SimulatedModel("encoder")]) as sim:
        member, encoder = sim.endpoints
        table = f'[embedder]\nbase_url = "{encoder.base_url}"\nmodel = "encoder"\ninput_usd_per_1m = 0.1\n'
        path.write_text(f"{pool_toml([member])}\n{table}")
        done = focalroute("ask", "What is 17 + 25?", "--choices", "41,42", "--pool", str(path), "--json")
        assert done.returncode == 0, done.stderr
        billed = sim.stats()["encoder"]
    assert billed.calls == 1
    assert Decimal(json.loads(done.stdout)["receipt"]["embedding"]) == billed.usd > 0
