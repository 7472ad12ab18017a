"""Policies as the command line names and shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from focalroute.cli.policy import describe, roll_back, roll_back_folder, show_policy
from focalroute.core.errors import ConfigError, PolicyError
from focalroute.learn.trial import Trial, write_trial
from focalroute.learn.update_report import Comparison
from focalroute.policy.bundle import COLD, current
from focalroute.policy.publish import publish
from focalroute.policy.references import load_reference

DECIDER, FUSION = (COLD / "decider.onnx").read_bytes(), (COLD / "fusion.onnx").read_bytes()


def again(root: Path, parent: int | None = None) -> int:
    metrics, settings = {"gate": {"gain": 1.5}, "curve": [{"cost_weight": 1}, {"cost_weight": 2}]}, {"clip": 0.2}
    return publish(
        root, decider=DECIDER, fusion=FUSION, names=(), parent=parent, metrics=metrics, hyperparameters=settings
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three versions, the last learned from the first."""
    folder = tmp_path / "policy"
    for parent in (None, 1, 1):
        again(folder, parent)
    return folder


def test_a_policy_is_named_by_its_folder_with_or_without_a_version_or_as_the_shipped_one(root: Path) -> None:
    assert (load_reference("cold").version, load_reference(str(root)).version, load_reference(f"{root}@2").version) == (
        0,
        3,
        2,
    )


def test_a_folder_may_have_an_at_in_its_name(tmp_path: Path) -> None:
    again(tmp_path / "me@home")
    assert load_reference(str(tmp_path / "me@home")).version == load_reference(f"{tmp_path}/me@home@1").version == 1


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("{root}@4", "version 4 is not kept; give one of 1, 2, 3"),
        ("{root}@new", "'new' is not a version; write folder@3"),
        ("{root}@", "'' is not a version"),
        ("{root}@²", "is not a version"),
        ("{root}/none", "there is no such folder"),
        ("{root}/none@1", "there is no such folder"),
        ("{root}/CURRENT", "there is no such folder"),
        ("{root}/v000001", "holds no policy"),
        ("", "holds no policy"),
    ],
)
def test_a_name_that_names_no_policy_is_a_setting_to_correct(root: Path, reference: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_reference(reference.format(root=root))
    assert says in str(caught.value)


def test_a_damaged_policy_is_a_policy_error(root: Path) -> None:
    (root / "v000002" / "decider.onnx").write_bytes(b"")
    with pytest.raises(PolicyError, match="SHA-256"):
        load_reference(f"{root}@2")


def test_it_shows_what_is_kept_and_what_it_was_made_from(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_policy(f"{root}@2")
    shown = capsys.readouterr().out
    assert f"{root}: versions 1, 2, 3 (serves)" in shown
    assert "version 2, learned from 1, made 20" in shown
    assert '  gate: {"gain": 1.5}\n  curve:\n    {"cost_weight": 1}\n    {"cost_weight": 2}\n' in shown
    assert "  clip: 0.2" in shown
    show_policy(str(root), as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert said == describe(str(root))
    assert (said["version"], said["parent"], said["current"], said["versions"]) == (3, 1, 3, [1, 2, 3])
    assert (said["challenger"], said["record"]) == (None, [])
    show_policy("cold")
    assert capsys.readouterr().out.startswith("version 0, learned from no other version, made -\n")
    again(root, 0)
    show_policy(str(root))
    assert "version 4, learned from the shipped policy" in capsys.readouterr().out


def test_what_a_bundle_calls_itself_does_not_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bundle made elsewhere may hold any text; values are shown as JSON, but names and keys were not."""
    named = {"\x1b[31mred": 1}
    publish(tmp_path, decider=DECIDER, fusion=FUSION, names=(), parent=None, hyperparameters=named)
    show_policy(str(tmp_path))
    assert "  \N{REPLACEMENT CHARACTER}[31mred: 1\n" in capsys.readouterr().out


def test_it_shows_the_challenger_on_trial_and_the_verdicts_on_earlier_ones(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(root, decider=DECIDER, fusion=FUSION, names=(), parent=3, on_trial=True)
    found = Comparison(700, 1.5, 0.25, 2.75, 1.25, -2.5)
    trial = Trial(3, 4).with_record(2, "dropped", found, "no better")
    write_trial(root, trial.with_record(3, "published", found, "surely better"))
    show_policy(str(root))
    shown = capsys.readouterr().out
    assert f"{root}: versions 1, 2, 3 (serves), 4 (on trial)\n" in shown
    assert "version 2 was dropped: no better\nversion 3 was published: surely better\n" in shown
    said = describe(str(root))
    assert (said["challenger"], said["record"][1]["gate"]["low"]) == (4, 0.25)


def test_rollback_goes_to_the_parent_or_to_a_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roll_back(str(root), None)
    assert capsys.readouterr().out == f"{root}: version 1 serves now\n"
    roll_back_folder(root, 2)
    assert current(root) == 2


def test_a_rollback_that_leads_nowhere_changes_nothing(root: Path, tmp_path: Path) -> None:
    roll_back_folder(root, 1)
    with pytest.raises(ConfigError, match="has no parent in this folder; name a version"):
        roll_back_folder(root, None)
    with pytest.raises(ConfigError, match="version 9 is not kept"):
        roll_back_folder(root, 9)
    assert current(root) == 1
    with pytest.raises(ConfigError, match="no such folder"):
        roll_back_folder(tmp_path / "none", None)
    (root / "v000002" / "fusion.onnx").write_bytes(b"")
    with pytest.raises(PolicyError, match="SHA-256"):
        roll_back_folder(root, 2)
    (root / "v000001" / "manifest.json").write_bytes(b"")
    with pytest.raises(PolicyError, match="is not a manifest"):
        roll_back_folder(root, None)
    assert current(root) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\0", b"v000009\n", 30 * b"v"])
def test_a_rollback_from_a_current_that_names_nothing_asks_for_a_version(root: Path, content: bytes) -> None:
    """Its error said "roll back"."""
    (root / "CURRENT").write_bytes(content)
    with pytest.raises(PolicyError, match=r"[^;]*; name the version to go back to: 1, 2, 3$"):
        roll_back_folder(root, None)
    assert roll_back_folder(root, 2) == current(root) == 2
