"""Whatever is found in place of a policy's file, reading it ends soon with an error that names it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from focalroute.core.errors import PolicyError
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.policy.bundle import current, load
from focalroute.policy.publish import install, publish

FILES = ["CURRENT", "v000001/manifest.json", "v000001/decider.onnx"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("published")
    publish(
        root,
        decider=decider_model(DeciderNet.initial(rng, vocabulary=1)),
        fusion=fusion_model(FusionNet.initial(rng, vocabulary=1)),
        names=("a",),
        parent=None,
    )
    return root


@pytest.fixture
def root(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "policy"))


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """Interrupt a test that hangs."""

    def fail(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_refused(name: str, root: Path) -> None:
    """Opening one usually waits for a writer."""
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(PolicyError, match=rf"{name}: is not a regular file"):
        load(root)


@pytest.mark.parametrize("name", FILES)
def test_a_link_out_of_the_folder_is_refused(name: str, root: Path, tmp_path: Path) -> None:
    """To a device, or to the same content."""
    (root / name).rename(tmp_path / "elsewhere")
    for target in (tmp_path / "elsewhere", Path("/dev/zero")):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(target)
        with pytest.raises(PolicyError, match=rf"{name}: is a link out of"):
            load(root)


def test_a_link_within_the_folder_is_followed(root: Path) -> None:
    """As mounted configuration has them; the folder itself may be a link, too."""
    (root / "CURRENT").rename(root / "..current")
    (root / "CURRENT").symlink_to("..current")
    (root.parent / "link").symlink_to(root)
    assert load(root.parent / "link").version == 1


@pytest.mark.parametrize(
    "content", ["v" + "1" * 5000, "v000001" + " " * 14 + "\n", "v" + "1" * 19, "v\u0660\u0660\u0660\u0660\u0660\u0661"]
)
def test_a_long_or_odd_current_is_refused(content: str, root: Path) -> None:
    """A number of 5,000 digits is more than Python turns into an int."""
    (root / "CURRENT").write_text(content)
    with pytest.raises(PolicyError, match=r"CURRENT: (is larger than 20 bytes|does not name a version)"):
        current(root)


def test_files_without_a_manifest_are_no_bundle(root: Path) -> None:
    with pytest.raises(PolicyError, match="publish it again"):
        install(root, 2, {"decider.onnx": b""})


def test_installing_over_a_pipe_does_not_wait(root: Path) -> None:
    """The bundle that is there is replaced."""
    folder = root / "v000001"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    install(root, 1, files)
    assert load(root).version == 1
