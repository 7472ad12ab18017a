"""The ``[judge]`` table of a pool file."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from focalroute import ConfigError, Endpoint, Ensemble, Judge
from focalroute.core.pool import load_pool
from focalroute.serving.judge import judge_from_pool_file
from focalroute.sim import SimulatedModel, SimulatedPool
from focalroute.sim.process import pool_toml
from tests.loopback import until
from tests.serving.pool_files import pool_of


def test_without_a_table_nobody_judges(tmp_path: Path) -> None:
    path = pool_of(tmp_path, "")
    assert judge_from_pool_file(load_pool(path), path) is None


def test_a_member_may_judge(tmp_path: Path) -> None:
    path = pool_of(tmp_path, '[judge]\nendpoint = "a"\nshare = 0.2\ncriteria = "Is it short?"')
    pool = load_pool(path)
    assert judge_from_pool_file(pool, path) == Judge(pool.endpoints[0], share=0.2, criteria="Is it short?")


def test_another_endpoint_may_judge(tmp_path: Path) -> None:
    prices = "input_usd_per_1m = 3\noutput_usd_per_1m = 9"
    path = pool_of(tmp_path, f'[judge]\nbase_url = "http://localhost:2/v1"\nmodel = "big"\n{prices}')
    judge = judge_from_pool_file(load_pool(path), path)
    assert judge is not None
    assert isinstance(judge.by, Endpoint)
    assert (judge.by.name, judge.by.model, judge.by.input_usd_per_1m) == ("judge", "big", Decimal(3))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("[judge]", "judge: model: required"),
        ('judge = "a"', r"judge: write it as a table, \[judge\]"),
        ('[judge]\nendpoint = "b"', "judge: endpoint: 'b' is not in the pool; use one of a"),
        ('[judge]\nendpoint = ["a"]', "is not in the pool"),
        ('[judge]\nendpoint = "a"\nmodel = "m"', "judge: model: unknown key beside endpoint"),
        ('[judge]\nendpoint = "a"\nshare = 2', "judge: share: "),
        ('[judge]\nmodel = "m"\napi_key = "k"', "judge: api_key: a pool file cannot hold one"),
        ('[judge]\nname = "a"\nmodel = "m"\nbase_url = "http://localhost:2/v1"', "names must be unique"),
        ('[judge]\nmodel = "m"\nbase_url = "http://localhost:2/v1"\ndim = 3', "judge: dim: unknown key"),
        ('[judge]\nmodel = "m"', "judge: give base_url"),
    ],
)
def test_errors_in_the_table_are_named(tmp_path: Path, table: str, says: str) -> None:
    path = pool_of(tmp_path, table)
    with pytest.raises(ConfigError, match=says):
        Ensemble.from_toml(path)


def test_a_judge_given_in_code_wins(tmp_path: Path) -> None:
    path = pool_of(tmp_path, '[judge]\nendpoint = "a"')
    with Ensemble.from_toml(path, judge=None) as ensemble:
        assert ensemble.stats().judge is None


def test_a_pool_file_alone_sets_up_a_judge(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    models = [SimulatedModel("a"), SimulatedModel("b"), SimulatedModel("grader", skills={"judging": 0.9})]
    with SimulatedPool(models) as sim:
        *members, grader = sim.endpoints
        table = f'[judge]\nbase_url = "{grader.base_url}"\nmodel = "grader"\nshare = 1.0\n'
        path.write_text(f"{pool_toml(members)}\n{table}")
        with Ensemble.from_toml(path) as ensemble:
            ensemble.ask("What is 17 + 25?", choices=["41", "42"])
            until(lambda: (stats := ensemble.stats().judge) is not None and stats.judged == 1)
