from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from focalroute.core.errors import PolicyError
from focalroute.observe.layout import CONTEXT, ENDPOINT, width
from focalroute.policy.bundle import COLD, DECIDER, FUSION
from focalroute.policy.onnx_model import MAX_BYTES, MAX_NODES, Session, inspect

DECIDER_ONNX = (COLD / "decider.onnx").read_bytes()


def decider() -> onnx.ModelProto:
    return onnx.load_model_from_string(DECIDER_ONNX)


def inputs(n: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return {
        "context": np.zeros((1, width(CONTEXT)), np.float32),
        "endpoints": np.zeros((1, n, width(ENDPOINT)), np.float32),
        "ids": np.zeros(n, np.int64),
    }


def test_the_shipped_models_pass() -> None:
    inspect(DECIDER_ONNX)
    inspect((COLD / "fusion.onnx").read_bytes())
    assert Session(DECIDER_ONNX, DECIDER).run(inputs(3)).shape == (1, 3)


def test_a_model_with_control_flow_is_refused() -> None:
    model = decider()
    branch = onnx.helper.make_graph([], "branch", [], [])
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["x"], then_branch=branch, else_branch=branch))
    with pytest.raises(PolicyError, match="operator b'If' is not allowed"):
        inspect(model.SerializeToString())


def test_a_subgraph_on_an_allowed_operator_is_refused() -> None:
    model = decider()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("g", onnx.helper.make_graph([], "inner", [], [])))
    with pytest.raises(PolicyError, match="of its Attribute is not allowed"):
        inspect(model.SerializeToString())


def test_other_operator_domains_are_refused() -> None:
    model = decider()
    model.graph.node[0].domain = "com.microsoft"
    with pytest.raises(PolicyError, match=r"domain b'com\.microsoft'"):
        inspect(model.SerializeToString())
    model = decider()
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    with pytest.raises(PolicyError, match=r"domain b'my\.domain'"):
        inspect(model.SerializeToString())


def test_tensors_in_other_files_are_refused(tmp_path: Path) -> None:
    model = decider()
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.external_data_helper.write_external_data_tensors(model, str(tmp_path))
    with pytest.raises(PolicyError, match="of its Tensor is not allowed"):
        inspect(model.SerializeToString())


def test_functions_and_metadata_are_refused() -> None:
    model = decider()
    model.metadata_props.add(key="ort_config", value="{}")
    with pytest.raises(PolicyError, match="field 14 of its Model"):
        inspect(model.SerializeToString())
    model = decider()
    model.functions.add(name="f")
    with pytest.raises(PolicyError, match="field 25 of its Model"):
        inspect(model.SerializeToString())


def test_a_model_that_is_too_large_is_refused() -> None:
    with pytest.raises(PolicyError, match="bytes are more than"):
        inspect(bytes(MAX_BYTES + 1))


def test_a_model_of_very_many_operators_is_refused() -> None:
    """The trained ones have a few dozen."""
    model = decider()
    model.graph.node.extend([model.graph.node[0]] * MAX_NODES)
    with pytest.raises(PolicyError, match=f"more than {MAX_NODES} operators"):
        inspect(model.SerializeToString())


def test_no_bytes_whatever_raise_anything_but_a_policy_error() -> None:
    rng = np.random.default_rng(0)
    for cut in rng.integers(0, len(DECIDER_ONNX), 50):
        with pytest.raises(PolicyError):
            Session(DECIDER_ONNX[:cut], DECIDER)
    for _ in range(50):
        with pytest.raises(PolicyError):
            Session(rng.bytes(200), DECIDER)
    for data in (b"", b"\xff" * 20, b"\x0b", b"\x3a\x7f", b"no model"):
        with pytest.raises(PolicyError):
            Session(data, DECIDER)


def test_a_model_with_another_signature_is_refused() -> None:
    with pytest.raises(PolicyError, match="has inputs and outputs"):
        Session(DECIDER_ONNX, FUSION)


def test_a_failing_run_is_a_policy_error_and_the_session_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(DECIDER_ONNX, DECIDER)
    with pytest.raises(PolicyError, match="onnxruntime"):
        session.run({**inputs(2), "ids": np.array([0, 99])})
    with pytest.raises(PolicyError, match="onnxruntime"):
        session.run({**inputs(2), "context": np.zeros((1, 3), np.float32)})
    assert session.run(inputs(2)).shape == (1, 2)
    assert capfd.readouterr().err == ""


def test_output_that_is_not_finite_is_a_policy_error() -> None:
    model = decider()
    for tensor in model.graph.initializer:
        if tensor.name == "bias":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([np.nan], np.float32), "bias"))
    session = Session(model.SerializeToString(), DECIDER)
    with pytest.raises(PolicyError, match="not finite"):
        session.run(inputs(2))


@pytest.mark.parametrize("wanted", [False, True])
def test_the_runtime_reports_nothing_to_its_makers_unless_that_was_wanted(tmp_path: Path, wanted: bool) -> None:
    """In a process of its own, outside of what the runtime takes for CI: no device id, no events kept to be sent."""
    script = (
        "import os; from focalroute.policy.bundle import cold; from focalroute.policy.onnx_model import Session\n"
        "cold()\n"
        "print(os.environ.get('ORT_DISABLE_TELEMETRY'))"
    )
    asked = {"ORT_DISABLE_TELEMETRY": "0"} if wanted else {}
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **asked}
    said = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ("0" if wanted else "None")
    assert wanted or not list(tmp_path.iterdir())
