"""Rules served by name, on observations and outcomes that are rare in service."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from focalroute.core.errors import ConfigError
from focalroute.core.records import Member, Observation, Outcome
from focalroute.observe.layout import CONTEXT, ENDPOINT, slices, width
from focalroute.policy.baselines import SERVED_BASELINES, Baseline, LogLinearOnline
from focalroute.policy.bundle import COLD
from focalroute.policy.decider import pick_probabilities
from focalroute.policy.references import parse_reference, resolve_policy

POOL = ("a", "b", "c")


def seen(**columns: tuple[float, float, float]) -> Observation:
    """What is seen of the pool; columns not given are 0."""
    rows = np.zeros((3, width(ENDPOINT)), np.float32)
    for name, values in columns.items():
        rows[:, slices(ENDPOINT)[name].start] = values
    return Observation(np.zeros(width(CONTEXT), np.float32), rows)


def order(policy: Baseline, observation: Observation) -> str:
    """The endpoints as it wants them, most wanted first."""
    p = pick_probabilities(policy.decider_logits(observation, policy.ids(POOL)))
    assert len(set(p)) == 3
    return "".join(POOL[i] for i in sorted(range(3), key=p.__getitem__, reverse=True))


def outcome(inferred: frozenset[str] = frozenset(), **right: float) -> Outcome:
    members = {name: Member(1, n, 10, 0.1, None) for n, name in enumerate(right)}
    return Outcome("id", members, right, inferred)


def test_the_best_single_goes_by_accuracy_then_price_then_the_pools_order() -> None:
    policy = SERVED_BASELINES["best-single"](POOL)
    assert order(policy, seen()) == "abc"
    assert order(policy, seen(price=(0.1, -0.2, -0.1))) == "bca"
    assert order(policy, seen(price=(0.1, -0.2, -0.1), accuracy=(0.3, 0.1, 0.3))) == "cab"


def test_the_latest_correct_counts_only_what_is_known() -> None:
    policy = SERVED_BASELINES["latest-correct"](POOL)
    policy.learn(outcome(b=1.0), 4)
    assert order(policy, seen()) == "bac"
    policy.learn(outcome(frozenset("c"), c=0.9, b=0.0), 4)
    assert order(policy, seen()) == "acb"
    policy.learn(outcome(c=0.0, gone=1.0), 4)
    assert order(policy, seen()) == "abc"  # b failed longer ago than c


def test_log_linear_leaves_its_weights_where_nothing_tells_its_members_apart() -> None:
    policy = LogLinearOnline(POOL)
    for empty, candidates in (
        (Outcome("id", outcome(a=1.0, b=0.0).members, {"a": 0.75}), 4),  # of b nothing is known
        (outcome(a=0.0, b=0.0), 2),  # nobody was right, and there is no other candidate
        (outcome(gone=1.0), 4),
    ):
        policy.learn(empty, candidates)
        assert policy.weights.tolist() == [1, 1, 1]
    policy.learn(outcome(a=1.0, b=0.0), 4)
    assert policy.weights[0] > 1 > policy.weights[1]
    assert policy.weights[2] == 1


def test_one_endpoint_is_a_pool_for_each() -> None:
    for kind in SERVED_BASELINES.values():
        one = Observation(np.zeros(width(CONTEXT), np.float32), np.zeros((1, width(ENDPOINT)), np.float32))
        assert kind(["a"]).decider_logits(one, np.arange(1)).item() > 0


@pytest.mark.parametrize("policy", ["folder/", "./folder", Path("folder")])
def test_anything_but_a_name_is_a_folder_wherever_the_program_works_by_then(
    policy: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a chdir, as daemons and notebooks make one, updates were published to, and served from, another folder."""
    monkeypatch.chdir(tmp_path)
    assert resolve_policy(policy, POOL) == tmp_path / "folder"
    assert resolve_policy(None, POOL) is None


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path, kind: type[str | Path]) -> None:
    """It was only logged, and plurality served."""
    (tmp_path / "pool.toml").touch()
    with pytest.raises(ConfigError, match="is a file; give the folder of the bundles"):
        resolve_policy(kind(tmp_path / "pool.toml"), POOL)


def test_one_version_in_the_place_of_its_folder_is_refused() -> None:
    """The cold start served, without a word."""
    with pytest.raises(ConfigError, match="cold is one version; give the folder that it is in"):
        resolve_policy(COLD, POOL)


def test_folder_at_version_is_refused_as_one_version_is(tmp_path: Path) -> None:
    """It was taken for a new folder of that name: the cold start served, and an update was published there."""
    (tmp_path / "policy" / "v000001").mkdir(parents=True)
    with pytest.raises(ConfigError, match="policy@1 is one version; give the folder that it is in"):
        resolve_policy(f"{tmp_path}/policy@1", POOL)
    assert resolve_policy(f"{tmp_path}/new@1", POOL) == tmp_path / "new@1"


def test_the_address_of_a_fleet_is_refused_and_not_shown() -> None:
    for refuse in (lambda given: resolve_policy(given, POOL), parse_reference):
        with pytest.raises(ConfigError, match=r"policy: is an address; give a folder, .*fleet's policy$"):
            refuse("redis://:secret@127.0.0.1:6379/0")


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy: File name too long; give another folder"):
        resolve_policy("x" * 300, POOL)
