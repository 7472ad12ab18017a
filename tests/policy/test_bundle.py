from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from focalroute.core.errors import PolicyError
from focalroute.core.records import COST_WEIGHT_RANGE, Evidence, Observation
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.money.pacing import LOWEST_WEIGHT
from focalroute.observe.experience import Experience
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, MEMBER, width
from focalroute.policy.bundle import COLD, CURRENT, SLICES, cold, current, digest, learner, load, load_folder, versions
from focalroute.policy.publish import publish


def observation(n: int) -> Observation:
    rng = np.random.default_rng(0)
    return Observation(
        rng.standard_normal(width(CONTEXT)).astype(np.float32),
        rng.standard_normal((n, width(ENDPOINT))).astype(np.float32),
    )


def evidence(k: int, m: int) -> Evidence:
    rng = np.random.default_rng(0)
    members = rng.standard_normal((k, m, width(MEMBER))).astype(np.float32)
    return Evidence(members, rng.standard_normal((k, width(CANDIDATE))).astype(np.float32), tuple(range(m)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one published version that knows two endpoints."""
    rng = np.random.default_rng(0)
    publish(
        tmp_path / "policy",
        decider=decider_model(DeciderNet.initial(rng, vocabulary=2)),
        fusion=fusion_model(FusionNet.initial(rng, vocabulary=2)),
        names=["llama", "qwen"],
        parent=0,
        hyperparameters={"epochs": 4},
        metrics={"reward": 0.25},
        learner={"critic": np.arange(3.0), "steps": np.array(7)},
    )
    return tmp_path / "policy"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as a (wrong) publisher would have written it, its digest included."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    change(manifest)
    manifest["digest"] = digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def swap_in(folder: Path, name: str, data: bytes) -> None:
    """Put another file in place, with its SHA-256."""
    (folder / name).write_bytes(data)
    rewrite(folder, lambda manifest: manifest["sha256"].__setitem__(name, hashlib.sha256(data).hexdigest()))


def test_a_published_policy_loads_as_it_was_written(root: Path) -> None:
    policy = load(root)
    assert (policy.version, policy.parent, policy.names) == (1, 0, ("llama", "qwen"))
    assert policy.hyperparameters == {"epochs": 4}
    assert policy.metrics == {"reward": 0.25}
    assert policy.created_at > 1e9
    assert policy.decider_onnx == (root / "v000001" / "decider.onnx").read_bytes()
    assert policy.fusion_onnx == (root / "v000001" / "fusion.onnx").read_bytes()
    assert current(root) == 1
    assert "onnx" not in repr(policy)


def test_the_policy_served_at_a_weight_is_the_one_that_did_best_near_it(root: Path) -> None:
    """Between two weights that serve different ways the nearer one; without a curve only asking all is out."""
    policy = load(root)
    assert policy.served(0.02) == (0.02, False)
    assert policy.served(LOWEST_WEIGHT) == (COST_WEIGHT_RANGE[0], False)
    assert policy.served(COST_WEIGHT_RANGE[1] * 2) == (COST_WEIGHT_RANGE[1] * 2, True)
    curve = [
        {"cost_weight": 0.01, "served": 0.01, "alone": False},
        {"cost_weight": 0.1, "served": 1.0, "alone": False},
        {"cost_weight": 1.0, "served": 1.0, "alone": True},
        {"cost_weight": 4.0, "served": 4.0, "alone": True},
    ]
    curved = replace(policy, metrics={"curve": curve})
    for weight, served in (
        (0.001, (0.001, False)),
        (0.01, (0.01, False)),
        (0.02, (0.01, False)),
        (0.05, (1.0, True)),
        (0.1, (1.0, True)),
        (2.0, (2.0, True)),
        (8.0, (8.0, True)),
    ):
        assert curved.served(weight) == served


def test_with_a_curve_of_an_earlier_format_the_nets_serve_their_trained_weights(root: Path) -> None:
    curve = [{"cost_weight": weight, "served": weight} for weight in (1.0, 4.0, 8.0)]
    policy = replace(load(root), metrics={"curve": curve})
    assert [policy.served(weight)[1] for weight in (1.0, 2.0, 4.0, 5.0, 7.0, 100.0)] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    "curve", [5, [5], [{}], [{"cost_weight": "x"}], [{"cost_weight": 1, "served": 2}], [{"cost_weight": 10**400}]]
)
def test_a_policy_whose_curve_cannot_be_read_is_not_served(root: Path, curve: object) -> None:
    """It passed its checks, and every ask raised a bare TypeError or KeyError."""
    rewrite(root / "v000001", lambda manifest: manifest["metrics"].update(curve=curve))
    with pytest.raises(PolicyError, match=r"manifest.json: metrics: curve: cannot be read \(\w+: "):
        load(root)


def test_ids_follow_the_names_and_unknown_endpoints_are_neutral(root: Path) -> None:
    ids = load(root).ids(("qwen", "new", "llama"))
    assert ids.tolist() == [2, 0, 1]
    assert ids.dtype == np.int64


def test_logits_have_one_number_an_endpoint_and_one_a_candidate(root: Path) -> None:
    policy = load(root)
    for n in (1, 12):
        logits = policy.decider_logits(observation(n), np.zeros(n, np.int64))
        assert logits.shape == (n,)
        assert logits.dtype == np.float32
    assert policy.fusion_logits(evidence(5, 3), np.array([0, 1, 2])).shape == (5,)
    assert policy.fusion_logits(evidence(4, 0), np.zeros(0, np.int64)).shape == (4,)


def test_the_shipped_policy_serves_without_importing_onnx() -> None:
    """In a fresh interpreter, since this one has it."""
    code = (
        "import sys; from focalroute.policy.bundle import cold; policy = cold(); "
        "assert policy.version == 0 and policy.parent is None and policy.names == (); "
        "assert 'onnx' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(COLD.parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_the_learner_gets_its_arrays_back_and_none_where_there_are_none(root: Path) -> None:
    arrays = learner(root, 1)
    assert arrays is not None
    assert arrays["critic"].tolist() == [0, 1, 2]
    assert arrays["steps"] == 7
    policy = cold()
    version = publish(root, decider=policy.decider_onnx, fusion=policy.fusion_onnx, names=(), parent=1)
    assert learner(root, version) is None


def test_a_damaged_learner_file_stops_learning_but_not_serving(root: Path) -> None:
    path = root / "v000001" / "learner.npz"
    path.write_bytes(path.read_bytes()[:-1])
    assert load(root).version == 1
    with pytest.raises(PolicyError, match=r"learner.npz: does not match its SHA-256"):
        learner(root, 1)


def experienced(root: Path) -> tuple[Experience, Path]:
    """An experience, and the folder of the next version, which brings it along."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((9, 5)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    values = np.where(rng.random((9, 2)) < 0.3, np.nan, rng.integers(0, 2, (9, 2))).astype(np.float32)
    accuracy, usd = np.array([0.75, 0.5], np.float32), np.array([0.25, np.nan], np.float32)
    made = Experience(("qwen", "phi"), accuracy, usd, vectors, values, np.full_like(values, np.nan))
    shipped = cold()
    version = publish(
        root, decider=shipped.decider_onnx, fusion=shipped.fusion_onnx, names=(), parent=1, experience=made
    )
    return made, root / f"v{version:06}"


def test_a_policy_brings_its_experience_along_and_none_where_there_is_none(root: Path) -> None:
    assert load(root).experience is None
    made, folder = experienced(root)
    found = load(root).experience
    assert found is not None
    assert found.names == ("qwen", "phi")
    np.testing.assert_array_equal(found.accuracy, made.accuracy)
    np.testing.assert_array_equal(found.values, made.values)
    np.testing.assert_allclose(found.vectors, made.vectors, atol=0.01)
    assert "experience.npz" in json.loads((folder / "manifest.json").read_bytes())["sha256"]
    assert load(root, 1).experience is None


def test_a_policy_with_a_damaged_experience_is_not_served(root: Path) -> None:
    made, folder = experienced(root)
    path = folder / "experience.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(PolicyError, match=r"experience.npz: does not match its SHA-256"):
        load(root)
    path.unlink()
    with pytest.raises(PolicyError, match=r"experience.npz: cannot be read"):
        load(root)
    swap_in(folder, "experience.npz", b"no archive")  # of which numpy says that it could be loaded unsafely
    with pytest.raises(PolicyError, match=r"experience.npz: is not a plain array archive: not a zip file; publish"):
        load(root)
    for wrong in ({"accuracy": np.array([0.5, np.nan])}, {"values": made.values[:3]}, {"names": np.array(["qwen"])}):
        archive = io.BytesIO()
        np.savez(archive, allow_pickle=False, **{**made.arrays(), **wrong})
        swap_in(folder, "experience.npz", archive.getvalue())
        with pytest.raises(PolicyError, match=r"experience.npz: its (arrays|numbers) "):
            load(root)
    swap_in(folder, "experience.npz", whole)
    assert load(root).experience is not None


def test_an_archive_that_unpacks_to_very_much_is_refused_before_it_is_unpacked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand zeros are one byte on the disk; the bound is lowered here to be met sooner."""
    monkeypatch.setattr("focalroute.policy.bundle._MAX_UNPACKED", 2**20)
    made, folder = experienced(root)
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **{**made.arrays(), "more": np.zeros(2**21, np.int8)})
    assert len(archive.getvalue()) < 2**14
    swap_in(folder, "experience.npz", archive.getvalue())
    with pytest.raises(PolicyError, match=r"experience.npz: is not a plain array archive: \d+ bytes unpacked are more"):
        load(root)


def test_an_archive_whose_arrays_are_longer_than_it_is_refused(root: Path) -> None:
    """The header of an array claims a terabyte; a broken packed stream, or half an archive, is no crash either."""
    made, folder = experienced(root)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **made.arrays())
    whole = archive.getvalue()
    shape = re.search(rb"\(2,\), }", whole)
    assert shape is not None
    claimed = whole.replace(b"(2,), }" + b" " * 13, b"(1099511627776,), }" + b" ", 1)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **made.arrays())
    for broken in (claimed, packed.getvalue().replace(b"\x9f", b"\xff"), whole[: len(whole) // 2]):
        assert broken not in (whole, packed.getvalue())
        swap_in(folder, "experience.npz", broken)
        with pytest.raises(PolicyError, match=r"experience.npz: "):
            load(root)


def test_pickled_learner_arrays_are_refused(root: Path) -> None:
    path = root / "pickled.npz"
    np.savez(path, thing=np.array([{"a": 1}], dtype=object))
    swap_in(root / "v000001", "learner.npz", path.read_bytes())
    with pytest.raises(PolicyError, match="plain array archive"):
        learner(root, 1)


def test_a_folder_that_does_not_exist_has_no_versions_and_no_current(tmp_path: Path) -> None:
    assert versions(tmp_path / "none") == ()
    with pytest.raises(PolicyError, match=r"CURRENT: cannot be read: No such file"):
        load(tmp_path / "none")


@pytest.mark.parametrize("content", [b"", b"v1", b"latest", b"\xff\xfe", b"v000001/../x"])
def test_a_current_that_names_no_version_is_refused(root: Path, content: bytes) -> None:
    (root / CURRENT).write_bytes(content)
    with pytest.raises(PolicyError, match=r"CURRENT: does not name a version; roll back to one by its number \(1"):
        load(root)


@pytest.mark.parametrize("name", ["manifest.json", "decider.onnx", "fusion.onnx"])
def test_a_missing_or_truncated_file_is_refused_by_name(root: Path, name: str) -> None:
    path = root / "v000001" / name
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 2):
        path.write_bytes(whole[:size])
        with pytest.raises(PolicyError, match=name):
            load(root)
    path.unlink()
    with pytest.raises(PolicyError, match=rf"{name}: cannot be read"):
        load(root)


@pytest.mark.parametrize("name", ["decider.onnx", "fusion.onnx"])
def test_a_flipped_bit_anywhere_in_a_model_is_refused(root: Path, name: str) -> None:
    path = root / "v000001" / name
    whole = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, len(whole), 100):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << int(at) % 8]) + whole[at + 1 :])
        with pytest.raises(PolicyError, match=rf"{name}: does not match its SHA-256"):
            load(root)


def test_a_flipped_bit_anywhere_in_the_manifest_is_refused_unless_its_content_stays(root: Path) -> None:
    path = root / "v000001" / "manifest.json"
    whole = path.read_bytes()
    content = json.loads(whole)
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with suppress(PolicyError):
            load(root)
            assert json.loads(path.read_bytes()) == content


def test_files_of_different_versions_do_not_mix(root: Path) -> None:
    policy = cold()
    publish(root, decider=policy.decider_onnx, fusion=policy.fusion_onnx, names=(), parent=1)
    shutil.copy(root / "v000001" / "decider.onnx", root / "v000002" / "decider.onnx")
    with pytest.raises(PolicyError, match=r"v000002/decider.onnx: does not match"):
        load(root)
    shutil.copytree(root / "v000001", root / "v000003")
    with pytest.raises(PolicyError, match=r"v000003/manifest.json: is of version 1, not 3"):
        load(root, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(schema=2), "has schema 2, this version of focalroute reads 1"),
        (lambda m: m.pop("schema"), "has schema None"),
        (lambda m: m.pop("names"), "names: is missing"),
        (lambda m: m.update(names=["a", "a"]), "names: must be different"),
        (lambda m: m.update(names=["a", 1]), "names: must be different"),
        (lambda m: m.update(version="1"), "version: is missing or of a wrong type"),
        (lambda m: m.update(created_at=1e300), "created_at: is not a time between 1970 and the year 9999"),
        (lambda m: m.update(created_at=10**400), "created_at: is not a time between 1970 and the year 9999"),
        (lambda m: m.update(created_at=-1e18), "created_at: is not a time between 1970 and the year 9999"),
        (lambda m: m.update(sha256=[]), "sha256: is missing or of a wrong type"),
        (lambda m: m["layout"]["context"].reverse(), "another layout"),
        (lambda m: m["layout"].pop("member"), "another layout"),
        (lambda m: m["sha256"].pop("fusion.onnx"), "fusion.onnx: does not match"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_with_the_reason(
    root: Path, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    rewrite(root / "v000001", change)
    with pytest.raises(PolicyError, match=reason):
        load(root)


@pytest.mark.parametrize("content", ["[]", "[1, 2]", "null", "7", '"x"', "{", "[" * 100_000, '{"schema": 1e999}'])
def test_a_file_that_is_not_a_manifest_is_refused(root: Path, content: str) -> None:
    (root / "v000001" / "manifest.json").write_text(content)
    with pytest.raises(PolicyError, match=r"manifest.json"):
        load(root)


def test_the_layout_in_the_manifest_keeps_the_order_of_the_slices() -> None:
    assert json.loads((COLD / "manifest.json").read_bytes())["layout"] == SLICES
    assert SLICES["context"][0] == ["first", 1]


def test_fewer_embeddings_than_names_are_refused(root: Path) -> None:
    rewrite(root / "v000001", lambda manifest: manifest["names"].append("third"))
    with pytest.raises(PolicyError, match=r"decider.onnx: fails on a trial: onnxruntime"):
        load(root)


def test_a_model_of_another_shape_is_refused(root: Path) -> None:
    swap_in(root / "v000001", "decider.onnx", (root / "v000001" / "fusion.onnx").read_bytes())
    with pytest.raises(PolicyError, match=r"decider.onnx: its Transpose does not fit"):
        load(root)


def test_output_of_another_size_is_refused(root: Path) -> None:
    """It gives two numbers for each endpoint."""
    model = onnx.load_model_from_string(decider_model(DeciderNet.initial(np.random.default_rng(0), vocabulary=2)))
    squeeze = model.graph.node[-1]
    twice = onnx.helper.make_node("Concat", [squeeze.input[0]] * 2, ["twice"], axis=1)
    squeeze.input[0] = "twice"
    model.graph.node.insert(len(model.graph.node) - 1, twice)
    swap_in(root / "v000001", "decider.onnx", model.SerializeToString())
    with pytest.raises(
        PolicyError, match=r"decider.onnx: fails on a trial: its output has the shape \(6,\), expected \(3,\)"
    ):
        load(root)


def test_weights_that_are_not_finite_are_refused(root: Path) -> None:
    net = FusionNet.initial(np.random.default_rng(0), vocabulary=2)
    net.hidden_pool[0, 0] = np.inf
    swap_in(root / "v000001", "fusion.onnx", fusion_model(net))
    with pytest.raises(PolicyError, match=r"fusion.onnx: fails on a trial: its output is not finite"):
        load(root)


def test_a_file_in_place_of_a_folder_is_a_policy_error(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("?")
    with pytest.raises(PolicyError):
        versions(tmp_path / "policy")
    with pytest.raises(PolicyError):
        load(tmp_path / "policy")
    with pytest.raises(PolicyError):
        load_folder(tmp_path / "policy")
