from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from focalroute.core.errors import PolicyError
from focalroute.core.records import Feedback
from focalroute.learn.export import decider_model, decider_net, fusion_model, fusion_net
from focalroute.learn.mappo import Hyperparameters, Learner
from focalroute.learn.online import MAX_LAG, MAX_USES, pack, unpack, update_policy, uses
from focalroute.learn.update_report import UpdateReport
from focalroute.observe.experience import Experience
from focalroute.policy import bundle
from focalroute.policy.publish import publish, rollback
from focalroute.store import open_store
from focalroute.store.base import Store, StoredAnswer
from tests.learn.made import NAMES, OPTIMUM, learned, linear_learner, play, value

SETTINGS = Hyperparameters(minibatch=64, decider_rate=0.02, fusion_rate=0.02)


@pytest.fixture
def store() -> Iterator[Store]:
    opened = open_store(None)
    yield opened
    opened.close()


def fill(store: Store, played: list[tuple[StoredAnswer, Feedback]]) -> None:
    store.write(*[row for pair in played for row in pair]).result()


def current(root: Path) -> Learner:
    """What the folder serves, as a player of the small world."""
    if not bundle.versions(root):
        return linear_learner()
    policy = bundle.load(root)
    assert policy.names == NAMES
    return replace(linear_learner(), decider=decider_net(policy.decider_onnx), fusion=fusion_net(policy.fusion_onnx))


def put(root: Path, learner: Learner, state: Mapping[str, ArrayLike] | None = None) -> None:
    """Publish a learner's nets."""
    decider, fusion = decider_model(learner.decider), fusion_model(learner.fusion)
    publish(root, decider=decider, fusion=fusion, names=NAMES, parent=None, learner=state)


def test_an_empty_store_is_insufficient(store: Store, tmp_path: Path) -> None:
    report = update_policy(store, tmp_path / "policy", seed=0)
    assert (report.status, report.version, report.episodes, report.held_out) == ("insufficient", 0, 0, 0)
    assert report.diagnostics is None
    assert not (tmp_path / "policy").exists()


def test_too_little_evidence_keeps_the_old_policy(store: Store, tmp_path: Path) -> None:
    """A fifth of 100 answers cannot have an effective sample size of 50."""
    fill(store, play(linear_learner(), 100, 0))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.status, report.version, report.episodes, report.held_out) == ("insufficient", 0, 80, 20)
    assert "under 50" in report.reason
    assert not bundle.versions(tmp_path)


def test_a_policy_that_passes_is_published_with_what_it_came_from(store: Store, tmp_path: Path) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    policy = bundle.load(tmp_path)
    assert (report.status, report.version, report.parent) == ("published", 2, 1)
    assert (report.episodes, report.held_out) == (400, 100)
    assert (policy.version, policy.parent, policy.names) == (2, 1, NAMES)
    assert policy.hyperparameters["seed"] == 0
    assert policy.hyperparameters["usd_per_call"] == pytest.approx({"left": 0.3, "right": 0.3, "useless": 0.4})
    assert report.diagnostics is not None
    assert report.comparison is not None
    assert policy.metrics["entropy"] == report.diagnostics.entropy
    assert policy.metrics["gate"]["gain"] == report.comparison.gain
    state = bundle.learner(tmp_path, 2)
    assert state is not None
    assert sorted(uses(state).values()) == [1] * 400


def test_from_update_to_update_it_finds_the_optimum(tmp_path: Path) -> None:
    """The whole loop, from nets set by hand: play, store, learn, pass the gate, serve, play on."""
    put(tmp_path, linear_learner())
    before, version = value(linear_learner()), 1
    for number in range(14):
        with_store = open_store(None)
        try:
            fill(with_store, play(current(tmp_path), 300, number, version=version, label=number % 2 == 0))
            report = update_policy(with_store, tmp_path, settings=SETTINGS, seed=number)
        finally:
            with_store.close()
        version = report.version
    assert value(current(tmp_path)) == pytest.approx(OPTIMUM)
    assert before < OPTIMUM - 0.3


def test_an_update_keeps_what_its_policy_brought_along(store: Store, tmp_path: Path) -> None:
    past = Experience(
        NAMES,
        np.array([0.5, 0.75, 0.25], np.float32),
        np.array([0.5, np.nan, 0], np.float32),
        np.eye(2, dtype=np.float32),
        np.ones((2, 3), "f4"),
    )
    start = linear_learner()
    files = decider_model(start.decider), fusion_model(start.fusion)
    publish(tmp_path, decider=files[0], fusion=files[1], names=NAMES, parent=None, experience=past)
    fill(store, play(start, 400, 0, version=1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).version == 2
    before, found = (bundle.load(tmp_path, version).experience for version in (1, 2))
    assert before is not None
    assert found is not None
    assert found.same(before)


def test_the_same_seed_gives_the_same_weights(store: Store, tmp_path: Path) -> None:
    fill(store, play(linear_learner(), 400, 0, version=1))
    for root, seed in (("a", 1), ("b", 1), ("c", 2)):
        put(tmp_path / root, linear_learner())
        assert update_policy(store, tmp_path / root, settings=SETTINGS, seed=seed).status == "published"
    a, b, c = (bundle.load(tmp_path / root) for root in "abc")
    assert (a.decider_onnx, a.fusion_onnx) == (b.decider_onnx, b.fusion_onnx)
    assert a.decider_onnx != c.decider_onnx


def test_it_goes_on_from_the_learners_state_and_uses_an_episode_three_times_at_most(
    store: Store, tmp_path: Path
) -> None:
    """Without new answers it stops by itself: the old ones are used up, or of too old a version."""
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 600, 0, version=1))
    gentle = replace(SETTINGS, decider_rate=0.001, fusion_rate=0.001)
    reports: list[UpdateReport] = []
    steps = []
    while not reports or reports[-1].status == "published":
        reports.append(update_policy(store, tmp_path, settings=gentle, seed=len(reports)))
        state = bundle.learner(tmp_path, reports[-1].version)
        assert state is not None
        steps.append(int(state["critic.steps"]))
        assert max(uses(state).values()) <= MAX_USES
    assert [report.version for report in reports] == [2, 3, 4, 5, 5]
    assert reports[-1].episodes == 0
    assert len(reports) == MAX_LAG + 2
    assert steps[:4] == sorted(set(steps[:4]))


def test_a_policy_that_is_surely_worse_is_rejected(store: Store, tmp_path: Path) -> None:
    """A Decider that is made to pick at random does not get past the gate."""
    good = learned(4, 0)
    put(tmp_path, good)
    fill(store, play(good, 500, 0, version=1))
    random = replace(SETTINGS, fusion_rate=1e-6, decider_rate=0.05, target_kl=1e9, entropy=50.0)
    report = update_policy(store, tmp_path, settings=random, seed=0)
    assert (report.status, report.version) == ("rejected", 1)
    assert report.comparison is not None
    assert report.comparison.high < -1
    assert bundle.versions(tmp_path) == (1,)


# -- greedy serving ----------------------------------------------------------------------------------------------------


def test_greedy_serving_teaches_the_fusion_alone(store: Store, tmp_path: Path) -> None:
    """Nothing was sampled, so the Decider stays, bit by bit; what the members are worth is learned and passes."""
    start = linear_learner()
    put(tmp_path, start)
    fill(store, play(start, 500, 0, version=1, explore=False))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    before, after = (bundle.load(tmp_path, version) for version in (1, 2))
    assert (report.status, report.version) == ("published", 2)
    assert report.comparison is not None
    assert (report.comparison.episodes, report.comparison.effective_sample_size) == (100, 100)
    assert before.decider_onnx == after.decider_onnx
    assert before.fusion_onnx != after.fusion_onnx
    assert report.diagnostics is not None
    assert report.diagnostics.decisions == 0


def test_a_broken_fusion_is_not_taken(store: Store, tmp_path: Path) -> None:
    """A learning rate that ruins it: not a step of the way there is likely better, and there is nothing to publish."""
    good = learned(4, 0)
    put(tmp_path, good)
    fill(store, play(good, 500, 0, version=1, explore=False))
    broken = replace(SETTINGS, fusion_rate=30.0, fusion_target_kl=1e9, epochs=1)
    report = update_policy(store, tmp_path, settings=broken, seed=0)
    assert (report.status, report.version) == ("insufficient", 1)
    assert "likely better" in report.reason
    assert bundle.versions(tmp_path) == (1,)


def test_only_judged_answers_of_a_policy_count_and_a_user_outranks_a_judge(store: Store, tmp_path: Path) -> None:
    played = play(linear_learner(), 40, 0)
    fill(store, played[:20])
    store.write(*[answer for answer, _ in played[20:30]]).result()
    fill(store, [(replace(answer, trajectory=None), said) for answer, said in played[30:]])
    store.write(*[Feedback(answer.id, 0.0, None, "judge", 3.0) for answer, _ in played[:20]]).result()
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.episodes, report.held_out) == (16, 4)
    assert report.diagnostics is not None
    assert report.diagnostics.fusion_loss > 0


def test_episodes_of_far_versions_are_for_the_gate_only(store: Store, tmp_path: Path) -> None:
    """Also after a rollback, when their version is the later one."""
    fill(store, play(linear_learner(), 50, 0, version=0))
    fill(store, play(linear_learner(), 50, 1, version=MAX_LAG))
    fill(store, play(linear_learner(), 50, 2, version=MAX_LAG + 1))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert report.held_out == 30
    assert 70 < report.episodes < 90


def test_a_damaged_learner_state_costs_the_critic_only(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).version == 2
    (tmp_path / "v000002" / "learner.npz").write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, "focalroute"):
        report = update_policy(store, tmp_path, settings=SETTINGS, seed=1)
    assert report.version == 3
    assert "the critic starts anew" in caplog.text


def test_a_state_of_other_shapes_costs_the_critic_only(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, linear_learner(), {"critic.hidden": np.zeros((3, 3))})
    fill(store, play(linear_learner(), 500, 0, version=1))
    with caplog.at_level(logging.WARNING, "focalroute"):
        assert update_policy(store, tmp_path, settings=SETTINGS, seed=1).version == 2
    assert "the critic starts anew" in caplog.text


def test_a_new_endpoint_gets_a_row_and_the_others_keep_theirs(store: Store, tmp_path: Path) -> None:
    """Names seen earlier keep their place, and Adam remembers them."""
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).version == 2
    renamed = [
        (replace(answer, trajectory=replace(answer.trajectory, endpoints=("left", "new", "useless"))), said)
        for answer, said in play(current(tmp_path), 500, 1, version=2)
        if answer.trajectory is not None
    ]
    fill(store, renamed)
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=1).version == 3
    policy = bundle.load(tmp_path)
    assert policy.names == (*NAMES, "new")
    state = bundle.learner(tmp_path, 3)
    assert state is not None
    assert state["decider.second.names"].shape[0] == 5


def test_a_broken_bundle_is_an_error_and_a_rolled_back_one_the_start(store: Store, tmp_path: Path) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    for seed in range(2):
        update_policy(store, tmp_path, settings=SETTINGS, seed=seed)
    assert rollback(tmp_path) == 2
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=2)
    assert (report.parent, report.version) == (2, 4)
    (tmp_path / "v000004" / "decider.onnx").write_bytes(b"")
    with pytest.raises(PolicyError, match="SHA-256"):
        update_policy(store, tmp_path, settings=SETTINGS, seed=3)


def test_what_is_packed_is_unpacked_if_it_fits() -> None:
    learner = linear_learner()
    used = {"a": 1, "b": 3}
    arrays = pack(learner, used)
    again = unpack(arrays, learner.decider, learner.fusion)
    assert uses(arrays) == used
    assert uses({}) == {}
    assert again.critic.hidden.tobytes() == learner.critic.hidden.tobytes()
    assert again.moments["fusion"].first.keys() == learner.moments["fusion"].first.keys()
    with pytest.raises(PolicyError, match="does not fit"):
        unpack({**arrays, "decider.first.bias": np.zeros(2)}, learner.decider, learner.fusion)
