from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from focalroute.core.errors import PolicyError
from focalroute.core.records import Feedback
from focalroute.learn.export import decider_model, decider_net, fusion_model, fusion_net
from focalroute.learn.mappo import Hyperparameters, Learner
from focalroute.learn.online import LEAST, pack, unpack, update_policy
from focalroute.learn.trial import BUDGET, PATIENCE, TRIAL, Trial, read_trial, write_trial
from focalroute.learn.update_report import UpdateReport
from focalroute.observe.experience import Experience
from focalroute.policy import bundle
from focalroute.policy.publish import make_current, publish
from focalroute.store import open_store
from focalroute.store.base import Store, StoredAnswer
from tests.learn.made import NAMES, OPTIMUM, learned, linear_learner, play, tried, value

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
    return version(root, bundle.current(root)) if bundle.versions(root) else linear_learner()


def version(root: Path, number: int) -> Learner:
    """One of the folder's versions."""
    policy = bundle.load(root, number)
    assert policy.names == NAMES
    return replace(linear_learner(), decider=decider_net(policy.decider_onnx), fusion=fusion_net(policy.fusion_onnx))


CURVE = [{"cost_weight": 1.0, "served": 1.0, "alone": True}]


def put(root: Path, learner: Learner, state: Mapping[str, ArrayLike] | None = None, *, on_trial: bool = False) -> None:
    """Publish a learner's nets."""
    decider, fusion = decider_model(learner.decider), fusion_model(learner.fusion)
    metrics = {"curve": CURVE}
    publish(
        root,
        decider=decider,
        fusion=fusion,
        names=NAMES,
        parent=None,
        metrics=metrics,
        learner=state,
        on_trial=on_trial,
    )


def updated(store: Store, root: Path, seed: int, start: int) -> int:
    """Put what is learned from the store on trial and play until there is a verdict; the version that then serves."""
    report = update_policy(store, root, settings=SETTINGS, seed=seed)
    champion, number = current(root), start
    while report.status == "on trial":
        assert report.challenger is not None
        played = tried(
            champion, version(root, report.challenger), 150, number, versions=(report.version, report.challenger)
        )
        fill(store, played)
        report, number = update_policy(store, root, settings=SETTINGS, seed=seed), number + 1
    return report.version


def test_feedback_mostly_where_members_differ_does_not_favour_a_challenger_that_asks_more(
    store: Store, tmp_path: Path
) -> None:
    """As a judge gives it. Its answers are disputed more often: it seemed to gain 11 points (8 to 15) instead of 2."""
    more, rng = learned(3, 0), random.Random("not the seed of the trial's draws")
    champion = replace(more, decider=replace(more.decider, bias=more.decider.bias - 9))  # asks one
    put(tmp_path, champion)
    put(tmp_path, more, on_trial=True)
    for answer, said in tried(champion, more, 4000, 0):
        store.write(answer, *[said] * (rng.random() < (0.3 if answer.disputed else 0.03)))
    found = update_policy(store, tmp_path, settings=SETTINGS, seed=0).comparison
    assert found is not None
    truth = 50 * (value(more, 4000, explore=True) - value(champion, 4000, explore=True))
    assert found.gain == pytest.approx(truth, abs=3)
    assert found.low < truth < found.high


def test_an_empty_store_is_insufficient(store: Store, tmp_path: Path) -> None:
    report = update_policy(store, tmp_path / "policy", seed=0)
    assert (report.status, report.version, report.episodes, report.held_out) == ("insufficient", 0, 0, 0)
    assert report.diagnostics is None
    assert not bundle.versions(tmp_path / "policy")


def test_too_little_feedback_keeps_the_old_policy(store: Store, tmp_path: Path) -> None:
    fill(store, play(linear_learner(), LEAST - 1, 0))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.status, report.version, report.episodes, report.held_out) == ("insufficient", 0, 80, 19)
    assert report.reason == f"only 99 of the latest 4,000 answers have feedback to learn from; {LEAST} are needed"
    assert not bundle.versions(tmp_path)


def test_an_empty_folder_gets_the_shipped_policy_and_a_challenger(store: Store, tmp_path: Path) -> None:
    fill(store, play(linear_learner(), 300, 0))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.status, report.version, report.parent, report.challenger) == ("on trial", 1, 0, 2)
    assert bundle.load(tmp_path).decider_onnx == bundle.cold().decider_onnx
    assert bundle.challenger(tmp_path) == 2


def test_updates_at_the_same_time_put_one_challenger_on_trial(store: Store, tmp_path: Path) -> None:
    """As of several workers with ``update_every``: each published the shipped policy, and a challenger to it."""
    fill(store, play(linear_learner(), 200, 0))
    with ThreadPoolExecutor(3) as workers:
        reports = list(workers.map(lambda seed: update_policy(store, tmp_path, settings=SETTINGS, seed=seed), range(3)))
    assert {(report.status, report.version, report.challenger) for report in reports} == {("on trial", 1, 2)}
    assert sorted(report.episodes for report in reports) == [0, 0, 160]
    assert bundle.versions(tmp_path) == (1, 2)


def test_a_learned_policy_goes_on_trial_and_is_published_once_significantly_better(
    store: Store, tmp_path: Path
) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    policy = bundle.load(tmp_path, 2)
    assert (report.status, report.version, report.challenger) == ("on trial", 1, 2)
    assert (report.episodes, report.held_out) == (400, 100)
    assert (bundle.current(tmp_path), bundle.challenger(tmp_path)) == (1, 2)
    assert (policy.version, policy.parent, policy.names) == (2, 1, NAMES)
    assert policy.hyperparameters["seed"] == 0
    assert policy.hyperparameters["usd_per_call"] == pytest.approx({"left": 0.3, "right": 0.3, "useless": 0.4})
    assert report.diagnostics is not None
    assert policy.metrics["curve"] == CURVE  # what is served at a cost weight stays
    assert policy.metrics["entropy"] == report.diagnostics.entropy

    again = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (again.status, again.challenger) == ("on trial", 2)  # what it was learned from is no evidence
    assert again.comparison is not None
    assert again.comparison.episodes == 0

    reports = [again]
    while reports[-1].status == "on trial":
        fill(store, tried(linear_learner(), version(tmp_path, 2), 100, len(reports)))
        reports.append(update_policy(store, tmp_path, settings=SETTINGS, seed=0))
    final = reports[-1]
    assert (final.status, final.version, final.parent, final.challenger) == ("published", 2, 1, None)
    assert final.comparison is not None
    assert final.comparison.low > 0
    assert final.comparison.episodes == 100 * (len(reports) - 1) < 1000
    assert (bundle.current(tmp_path), bundle.challenger(tmp_path)) == (2, None)
    (entry,) = read_trial(tmp_path, 2, None).record
    assert (entry["version"], entry["outcome"], entry["reason"]) == (2, "published", final.reason)
    assert entry["gate"]["gain"] == final.comparison.gain

    update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert len(read_trial(tmp_path, 2, None).watched.values) == 0  # nor is what it was published for
    fill(store, play(version(tmp_path, 2), 50, 99, version=2))
    update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert len(read_trial(tmp_path, 2, None).watched.values) == 50


def test_answers_of_another_folders_trial_are_no_evidence(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a folder was begun anew, answers of the former versions 1 and 2 published a new version 2 at once."""
    monkeypatch.setattr("focalroute.learn.online.WINDOW", 300)
    put(tmp_path, linear_learner())
    fill(store, tried(linear_learner(), learned(3, 1), 400, 0))
    fill(store, play(linear_learner(), 300, 1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).challenger == 2
    again = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert again.comparison is not None
    assert (again.status, again.comparison.episodes) == ("on trial", 0)


def test_answers_of_two_folders_in_one_store_decide_no_trial(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They tell versions apart by number alone: those of the other folder's version 2 counted as this one's."""
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 300, 1, version=1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).challenger == 2
    for other, counted in ((learned(3, 1), 0), (version(tmp_path, 2), 150)):
        fill(store, tried(linear_learner(), other, 150, counted))
        comparison = update_policy(store, tmp_path, settings=SETTINGS, seed=0).comparison
        assert comparison is not None
        assert comparison.episodes == counted
    (record,) = caplog.records
    assert "150 answers do not count in a trial, as another policy folder's version 1 or 2" in record.getMessage()


def test_a_trial_that_cannot_be_written_is_a_failure_of_the_policy_folder(tmp_path: Path) -> None:
    """On a full disk it was a bare OSError, which an ensemble's updates on a thread did not even log."""
    with pytest.raises(PolicyError, match=r"gone: cannot be written: .*; its trial does not go on"):
        write_trial(tmp_path / "gone", Trial(1))


def test_a_trial_that_unpacks_to_very_much_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of a bundle's arrays, lowered here to be met sooner."""
    write_trial(tmp_path, Trial(1, 2, parent=0))
    assert read_trial(tmp_path, 1, 2).parent == 0
    monkeypatch.setattr("focalroute.policy.bundle._MAX_UNPACKED", 100)
    assert read_trial(tmp_path, 1, 2).parent is None


@pytest.mark.slow
def test_a_challenger_that_is_worse_goes_and_another_one_comes(store: Store, tmp_path: Path) -> None:
    """A Decider that is made to pick at random."""
    good = learned(4, 0)
    put(tmp_path, good)
    fill(store, play(good, 500, 0, version=1))
    random = replace(SETTINGS, fusion_rate=1e-6, decider_rate=0.05, target_kl=1e9, entropy=50.0)
    assert update_policy(store, tmp_path, settings=random, seed=0).status == "on trial"
    fill(store, tried(good, version(tmp_path, 2), 500, 1))
    report = update_policy(store, tmp_path, settings=random, seed=0)
    assert (report.status, report.version, report.challenger) == ("dropped", 1, None)
    assert report.comparison is not None
    assert report.comparison.high < 0
    assert (bundle.current(tmp_path), bundle.challenger(tmp_path)) == (1, None)
    assert [entry["outcome"] for entry in read_trial(tmp_path, 1, None).record] == ["dropped"]
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).challenger == 3


@pytest.mark.slow
def test_a_challenger_that_is_not_better_is_dropped_at_the_end_of_its_trial(store: Store, tmp_path: Path) -> None:
    """Before that as soon as it is not ahead, but not at once; and every answer counts once."""
    put(tmp_path, linear_learner())
    put(tmp_path, linear_learner(), on_trial=True)
    counts: list[int] = []
    status = "on trial"
    while status == "on trial":
        fill(store, tried(linear_learner(), linear_learner(), 250, len(counts)))
        report = update_policy(store, tmp_path, seed=0)
        status = report.status
        assert report.comparison is not None
        counts.append(report.comparison.episodes)
    assert status == "dropped"
    assert counts == [min(250 * (n + 1), BUDGET) for n in range(len(counts))]
    assert counts[-1] >= PATIENCE


def test_a_challenger_that_cannot_be_loaded_is_dropped(store: Store, tmp_path: Path) -> None:
    """Every update failed until somebody ended the trial by hand."""
    put(tmp_path, linear_learner())
    put(tmp_path, learned(1, 0), on_trial=True)
    (tmp_path / "v000002" / "fusion.onnx").write_bytes(b"")
    report = update_policy(store, tmp_path, seed=0)
    assert (report.status, report.version, report.challenger) == ("dropped", 1, None)
    assert report.reason.startswith("version 2 cannot be tried: ")
    assert bundle.challenger(tmp_path) is None
    (verdict,) = read_trial(tmp_path, 1, None).record
    assert (verdict["version"], verdict["outcome"], verdict["gate"]["episodes"]) == (2, "dropped", 0)


def test_updates_go_on_if_the_version_before_cannot_be_loaded(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, linear_learner())
    put(tmp_path, learned(1, 0))
    write_trial(tmp_path, Trial(2, parent=1))
    (tmp_path / "v000001" / "fusion.onnx").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "focalroute"):
        assert update_policy(store, tmp_path, seed=0).status == "insufficient"
    assert "version 2 is no longer compared with its predecessor: " in caplog.text


def test_a_published_policy_that_is_significantly_worse_is_rolled_back(store: Store, tmp_path: Path) -> None:
    """The world changed, or chance had deceived: the same test, on the answers of what serves."""
    good, bad = learned(3, 0), learned(1, 0)
    put(tmp_path, good)
    put(tmp_path, bad, on_trial=True)
    make_current(tmp_path, 2)
    write_trial(tmp_path, Trial(2, parent=1))
    reports: list[UpdateReport] = []
    while not reports or reports[-1].status in ("insufficient", "on trial"):
        fill(store, play(bad, 200, len(reports), version=2))
        reports.append(update_policy(store, tmp_path, seed=0))
    assert (reports[-1].status, reports[-1].version, reports[-1].parent) == ("rolled back", 1, 2)
    assert (bundle.current(tmp_path), bundle.challenger(tmp_path)) == (1, None)
    assert [entry["outcome"] for entry in read_trial(tmp_path, 1, None).record] == ["rolled back"]


def test_a_published_policy_is_watched_until_its_predecessor_cannot_be_shown_to_be_better(
    store: Store, tmp_path: Path
) -> None:
    good = learned(3, 0)
    put(tmp_path, learned(1, 0))
    put(tmp_path, good, on_trial=True)
    make_current(tmp_path, 2)
    write_trial(tmp_path, Trial(2, parent=1))
    watched = []
    for number, answers in enumerate((20, 500)):
        fill(store, play(good, answers, number, version=2))
        update_policy(store, tmp_path, seed=0)
        watched.append(read_trial(tmp_path, 2, None).parent)
    assert watched == [1, None]
    assert bundle.current(tmp_path) == 2


@pytest.mark.slow
def test_a_process_that_does_not_serve_the_challenger_evaluates_it_on_the_champions_answers(
    store: Store, tmp_path: Path
) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0, share=0).status == "on trial"
    fill(store, play(linear_learner(), 1500, 1, version=1))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0, share=0)
    assert (report.status, report.version) == ("published", 2)
    assert report.comparison is not None
    assert report.comparison.episodes == 1500


def test_a_trial_that_cannot_be_read_begins_anew(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 300, 0, version=1))
    update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    (tmp_path / TRIAL).write_bytes(b"PK")
    with caplog.at_level(logging.WARNING, "focalroute"):
        report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.status, report.challenger) == ("on trial", 2)
    assert "the trial begins anew" in caplog.text


def test_another_version_put_in_place_by_hand_ends_the_trial(store: Store, tmp_path: Path) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 300, 0, version=1))
    update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    put(tmp_path, learned(1, 0))
    assert (bundle.current(tmp_path), bundle.challenger(tmp_path)) == (3, None)
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.parent, report.challenger) == (3, 4)


@pytest.mark.slow
def test_from_update_to_update_it_finds_the_optimum(tmp_path: Path) -> None:
    """The whole loop, from nets set by hand: play, store, learn, try, serve, play on."""
    put(tmp_path, linear_learner())
    before = value(linear_learner())
    values = [before]
    for number in range(7):
        with closing(open_store(None)) as store:
            fill(store, play(current(tmp_path), 600, number, version=bundle.current(tmp_path), label=number % 2 == 0))
            updated(store, tmp_path, seed=number, start=100 * (number + 1))
        values.append(value(current(tmp_path)))
    assert values[-1] == pytest.approx(OPTIMUM)
    assert before < OPTIMUM - 0.3
    assert all(after >= earlier - 0.02 for earlier, after in pairwise(values))


def test_an_update_keeps_what_its_policy_brought_along(store: Store, tmp_path: Path) -> None:
    past = Experience(
        NAMES,
        np.array([0.5, 0.75, 0.25], np.float32),
        np.array([0.5, np.nan, 0], np.float32),
        np.eye(2, dtype=np.float32),
        np.ones((2, 3), "f4"),
        np.ones((2, 3), "f4"),
    )
    start = linear_learner()
    files = decider_model(start.decider), fusion_model(start.fusion)
    publish(tmp_path, decider=files[0], fusion=files[1], names=NAMES, parent=None, experience=past)
    fill(store, play(start, 400, 0, version=1))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).challenger == 2
    before, found = (bundle.load(tmp_path, version).experience for version in (1, 2))
    assert before is not None
    assert found is not None
    assert found.same(before)


def test_the_same_seed_gives_the_same_weights(store: Store, tmp_path: Path) -> None:
    fill(store, play(linear_learner(), 400, 0, version=1))
    for root, seed in (("a", 1), ("b", 1), ("c", 2)):
        put(tmp_path / root, linear_learner())
        assert update_policy(store, tmp_path / root, settings=SETTINGS, seed=seed).challenger == 2
    a, b, c = (bundle.load(tmp_path / root, 2) for root in "abc")
    assert (a.decider_onnx, a.fusion_onnx) == (b.decider_onnx, b.fusion_onnx)
    assert a.decider_onnx != c.decider_onnx


def test_it_goes_on_from_the_learners_state(store: Store, tmp_path: Path) -> None:
    """What is published is the start of the next: its critic and Adam's moments with it."""
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    steps = []
    for number in (2, 3):
        assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).challenger == number
        state = bundle.learner(tmp_path, number)
        assert state is not None
        steps.append(int(state["critic.steps"]))
        make_current(tmp_path, number)
    assert steps[1] == 2 * steps[0]


# -- greedy serving ----------------------------------------------------------------------------------------------------


def test_greedy_serving_teaches_the_fusion_alone(store: Store, tmp_path: Path) -> None:
    """Nothing was sampled, so the Decider stays, bit by bit; what the members are worth is learned and tried."""
    start = linear_learner()
    put(tmp_path, start)
    fill(store, play(start, 500, 0, version=1, explore=False))
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    before, after = (bundle.load(tmp_path, version) for version in (1, 2))
    assert (report.status, report.challenger) == ("on trial", 2)
    assert before.decider_onnx == after.decider_onnx
    assert before.fusion_onnx != after.fusion_onnx
    assert report.diagnostics is not None
    assert report.diagnostics.decisions == 0
    fill(store, tried(start, version(tmp_path, 2), 400, 1, explore=False))
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=0).status == "published"


@pytest.mark.slow
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
    played = play(linear_learner(), 140, 0)
    fill(store, played[:120])
    store.write(*[answer for answer, _ in played[120:130]]).result()
    fill(store, [(replace(answer, trajectory=None), said) for answer, said in played[130:]])
    store.write(*[Feedback(answer.id, 0.0, None, "judge", 3.0) for answer, _ in played[:120]]).result()
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    assert (report.episodes, report.held_out) == (96, 24)
    assert report.diagnostics is not None
    assert report.diagnostics.fusion_loss > 0


def test_a_damaged_learner_state_costs_the_critic_only(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    make_current(tmp_path, 2)
    (tmp_path / "v000002" / "learner.npz").write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, "focalroute"):
        report = update_policy(store, tmp_path, settings=SETTINGS, seed=1)
    assert report.challenger == 3
    assert "the critic starts anew" in caplog.text


def test_a_state_of_other_shapes_costs_the_critic_only(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, linear_learner(), {"critic.hidden": np.zeros((3, 3))})
    fill(store, play(linear_learner(), 500, 0, version=1))
    with caplog.at_level(logging.WARNING, "focalroute"):
        assert update_policy(store, tmp_path, settings=SETTINGS, seed=1).challenger == 2
    assert "the critic starts anew" in caplog.text


def test_a_new_endpoint_gets_a_row_and_the_others_keep_theirs(store: Store, tmp_path: Path) -> None:
    """Names seen earlier keep their place, and Adam remembers them."""
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    update_policy(store, tmp_path, settings=SETTINGS, seed=0)
    make_current(tmp_path, 2)
    renamed = [
        (replace(answer, trajectory=replace(answer.trajectory, endpoints=("left", "new", "useless"))), said)
        for answer, said in play(current(tmp_path), 500, 1, version=2)
        if answer.trajectory is not None
    ]
    fill(store, renamed)
    assert update_policy(store, tmp_path, settings=SETTINGS, seed=1).challenger == 3
    policy = bundle.load(tmp_path, 3)
    assert policy.names == (*NAMES, "new")
    state = bundle.learner(tmp_path, 3)
    assert state is not None
    assert state["decider.second.names"].shape[0] == 5


@pytest.mark.slow
def test_a_broken_bundle_is_an_error_and_a_rolled_back_one_the_start(store: Store, tmp_path: Path) -> None:
    put(tmp_path, linear_learner())
    fill(store, play(linear_learner(), 500, 0, version=1))
    for number in (2, 3):
        update_policy(store, tmp_path, settings=SETTINGS, seed=0)
        make_current(tmp_path, number)
    make_current(tmp_path, 2)
    report = update_policy(store, tmp_path, settings=SETTINGS, seed=2)
    assert (report.version, report.challenger) == (2, 4)
    (tmp_path / "v000002" / "decider.onnx").write_bytes(b"")
    with pytest.raises(PolicyError, match="SHA-256"):
        update_policy(store, tmp_path, settings=SETTINGS, seed=3)


def test_a_packed_learner_is_unpacked_if_it_fits() -> None:
    learner = linear_learner()
    arrays = pack(learner)
    again = unpack(arrays, learner.decider, learner.fusion)
    assert again.critic.hidden.tobytes() == learner.critic.hidden.tobytes()
    assert again.moments["fusion"].first.keys() == learner.moments["fusion"].first.keys()
    with pytest.raises(PolicyError, match="does not fit"):
        unpack({**arrays, "decider.first.bias": np.zeros(2)}, learner.decider, learner.fusion)
