"""The job engine: the same results in this process and as Ray tasks, on a real cluster of two nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from focalroute import ConfigError
from focalroute.cli.train import train
from focalroute.core.errors import FocalrouteError
from focalroute.evaluate.collect import collect
from focalroute.evaluate.dataset import read_dataset
from focalroute.evaluate.job_engine import HERE, Engine, _environment, _private, open_engine, shares_files
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.report import evaluate
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import folder_of
from focalroute.sim import SimulatedPool, stream
from tests.cli.calling import focalroute, focalroute_apart
from tests.conftest import StartPool
from tests.engine_jobs import die, refuse, times, where
from tests.evaluate import logs
from tests.redis_server import free_port

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*ray_client_server:ResourceWarning")  # Ray's own

ROOT = Path(__file__).resolve().parents[2]
BRIEF = OfflineSettings(iterations=2, fusion_epochs=1, lookahead_steps=2, finish=1, critic_steps=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes of one core each, on the loopback interface."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install 'focalroute[ray]')")
    with _environment({**_private(), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}):
        from ray.cluster_utils import Cluster

        port = free_port()
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "ray_client_server_port": port})
        try:
            made.add_node(num_cpus=1)
            yield f"ray://127.0.0.1:{port}"
        finally:
            made.shutdown()


@pytest.fixture(scope="module")
def ray(cluster: str) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield _connected(stack, cluster)


def _connected(stack: ExitStack, address: str, tries: int = 3) -> Engine:
    """On a machine under load Ray may give up on a connection while its cluster is still starting."""
    try:
        return stack.enter_context(open_engine(address))
    except ConfigError:
        if tries == 1:
            raise
        return _connected(stack, address, tries - 1)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("given")
    lines = logs.stream(80, {"a": 0.5, "b": 0.9, "c": 0.7})
    prices = {"a": 1.0, "b": 2.0, "c": 4.0}
    return logs.write_log(folder / "log.jsonl", lines), logs.write_pool(folder / "pool.toml", prices)


# -- the engine ------------------------------------------------------------------------------------------------------


def test_local_jobs_run_one_after_the_other() -> None:
    told: list[tuple[int, int]] = []
    with open_engine("local") as engine:
        assert engine is HERE
        assert engine.each(times, 7, [1, 2], told.append) == [7, 14]
        assert told == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
        assert engine.each(where, None, [1]) == [os.getpid()]
        assert engine.machines == 1


@pytest.mark.parametrize("name", ["", "Ray", "dask", "http://127.0.0.1:1"])
def test_an_engine_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match="engine: must be local, ray or ray://host:port"), open_engine(name):
        pass


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'focalroute\[ray\]'"), open_engine("ray"):
        pass


def test_a_cluster_that_is_not_there_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray tried for 35 seconds. It is not needed for that, nor loaded here, as that takes a while."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    refused = r"engine: no Ray cluster at ray://127\.0\.0\.1:1: .*Connection refused"
    with pytest.raises(ConfigError, match=refused), open_engine("ray://127.0.0.1:1"):
        pass


def test_only_a_cluster_of_this_machine_shares_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [shares_files(where) for where in ("local", "ray", "ray://127.0.0.1:1")] == [True, True, False]
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
    assert [shares_files(where) for where in ("local", "ray")] == [True, False]


def _assert_jobs_run_elsewhere(engine: Engine) -> None:
    """In other processes, with the results, messages and errors they would have here."""
    told: list[tuple[int, int]] = []
    assert engine.each(times, 7, [3, 1], told.append) == [21, 7]
    for job in (1, 3):
        assert [number for one, number in told if one == job] == [0, 1, 2]
    messages: list[int] = []
    with pytest.raises(ConfigError, match=r"^one: 5 of 7$"):
        engine.each(refuse, 7, [5], messages.append)
    assert messages == [5]
    with pytest.raises(FocalrouteError, match="a job was lost"):
        engine.each(die, 7, [1], again=False)
    assert os.getpid() not in engine.each(where, None, [1])


@pytest.mark.slow
def test_jobs_run_on_the_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray as a user without a cluster has it."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install 'focalroute[ray]')")
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # it starts a process for each core
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with _environment({"RAY_enable_worker_prestart": "0"}), open_engine("ray") as engine:
        assert engine.machines == 1
        _assert_jobs_run_elsewhere(engine)


@pytest.mark.slow
def test_jobs_run_on_a_cluster(ray: Engine) -> None:
    assert ray.machines == 2
    _assert_jobs_run_elsewhere(ray)
    assert ray.each(times, 7, []) == []


# -- what runs on it -------------------------------------------------------------------------------------------------


def _files(folder: Path) -> dict[str, bytes]:
    """Of the first version, but for the manifest, which has the time in it."""
    return {path.name: path.read_bytes() for path in folder_of(folder, 1).iterdir() if path.suffix == ".onnx"}


@pytest.mark.slow
def test_training_gives_the_same_files(
    cluster: str, ray: Engine, given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two logs, two seeds, by command: locally, and on a cluster made for it, silent and without anything kept."""
    log, pool = given
    other = logs.write_log(tmp_path / "other.jsonl", logs.stream(60, {"a": 0.8, "b": 0.4, "c": 0.6}, seed=1))
    settings: dict[str, Any] = {"seeds": 2, "iterations": 2, "as_json": True}
    train([log, other], [pool], tmp_path / "here", **settings)
    said = json.loads(capsys.readouterr().out)
    assert [one["queries"] for one in said] == [80, 60]
    out = ("--out", str(tmp_path / "there"), "--seeds", "2", "--iterations", "2", "--json", "--engine", "ray")
    for _ in range(3):  # as `_connected`
        done = focalroute_apart("train", str(log), str(other), "--pool", str(pool), *out)
        if not done.stderr.startswith("error: engine: no Ray cluster"):
            break
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == said
    for name in ("log", "other"):
        assert _files(tmp_path / "there" / name) == _files(tmp_path / "here" / name)
        assert not list((tmp_path / "there" / name).glob(".training*"))


def test_several_logs_need_folders_and_pools(given: tuple[Path, Path], tmp_path: Path) -> None:
    log, pool = given
    with pytest.raises(ConfigError, match="two are called 'log'"):
        train([log, log], [pool], tmp_path)
    with pytest.raises(ConfigError, match="one for all 3 logs, or one for each, not 2"):
        train([log, tmp_path / "b.jsonl", tmp_path / "c.jsonl"], [pool] * 2, tmp_path)


@pytest.mark.slow
def test_an_evaluation_gives_the_same_report(ray: Engine, given: tuple[Path, Path]) -> None:
    """Seeds, operating points, a preset."""
    settings: dict[str, Any] = {"seeds": 2, "operating_points": (0.3, 1.0), "presets": ("der",), "settings": BRIEF}
    here = evaluate(*given, **settings)
    there = evaluate(*given, **settings, engine=ray)
    assert there.to_dict() == here.to_dict()


@pytest.fixture(scope="module")
def pool(start_pool: StartPool) -> SimulatedPool:
    return start_pool()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = [{"id": q.id, "prompt": q.text, "choices": q.choices, "label": q.label} for q in stream(40)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _answers(log: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(one.id, {name: output.answer for name, output in one.outputs.items()}) for one in read_log(log)]


@pytest.mark.slow
def test_many_machines_collect_what_one_does(ray: Engine, pool: SimulatedPool, dataset: Path, tmp_path: Path) -> None:
    """Each question once, in order, for the same money; what endpoints can do, each machine tries out for itself."""
    questions = read_dataset(dataset)
    one = collect(pool.endpoints, questions, tmp_path / "one.jsonl")
    before, steps = logs.billed(pool), list[int]()
    many = collect(pool.endpoints, questions, tmp_path / "many.jsonl", advance=steps.append, engine=ray)
    assert _answers(tmp_path / "many.jsonl") == _answers(tmp_path / "one.jsonl")
    assert (many.asked, many.right, many.stopped) == (40, one.right, None)
    assert many.usd == logs.billed(pool) - before
    asked = logs.paid_for(tmp_path / "many.jsonl")
    assert asked == logs.paid_for(tmp_path / "one.jsonl")
    assert many.usd - asked == 2 * (one.usd - asked) > 0
    assert sum(steps) == 40


class TwoMachines(Engine):
    """The engine of this process, which says that it is two machines: shares are asked one after the other."""

    @property
    def machines(self) -> int:
        return 2


def _assert_one_budget_is_kept(engine: Engine, pool: SimulatedPool, dataset: Path, folder: Path) -> None:
    """A machine spends what others' shares left over, so no more is left than one machine alone would leave."""
    questions, out = read_dataset(dataset), folder / "log.jsonl"
    whole = collect(pool.endpoints, questions, folder / "whole.jsonl").usd
    before = logs.billed(pool)
    first = collect(pool.endpoints, questions, out, max_usd=whole / 2, engine=engine)
    assert first.stopped is not None
    assert 0 < first.asked < 40
    assert first.usd == logs.billed(pool) - before <= whole / 2
    rest = collect(pool.endpoints, questions, out, max_usd=2 * whole, resume=True, engine=engine)
    assert (rest.before, rest.asked, rest.stopped) == (first.asked, 40 - first.asked, None)
    assert [one.id for one in read_log(out)] == [question.id for question in questions]


@pytest.mark.slow
def test_several_machines_keep_to_one_budget(pool: SimulatedPool, dataset: Path, tmp_path: Path) -> None:
    _assert_one_budget_is_kept(TwoMachines(), pool, dataset, tmp_path)


@pytest.mark.slow
def test_a_cluster_keeps_to_one_budget(ray: Engine, pool: SimulatedPool, dataset: Path, tmp_path: Path) -> None:
    _assert_one_budget_is_kept(ray, pool, dataset, tmp_path)


def test_on_other_machines_nothing_can_be_resumed(given: tuple[Path, Path], tmp_path: Path) -> None:
    """It is said at once, not when a cluster has been reached."""
    log, pool = given
    out = ("--out", str(tmp_path), "--engine", "ray://127.0.0.1:1", "--resume")
    done = focalroute("train", str(log), "--pool", str(pool), *out)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: resume: a training on other machines keeps nothing to resume from")
