from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from focalroute.core.errors import PolicyError
from focalroute.observe.layout import CONTEXT, ENDPOINT, width
from focalroute.policy.bundle import COLD, DECIDER, FUSION
from focalroute.policy.onnx_model import MAX_BYTES, MAX_NODES, Graph, Session

ROOT = Path(__file__).resolve().parents[2]
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
    Graph(DECIDER_ONNX)
    Graph((COLD / "fusion.onnx").read_bytes())
    assert Session(DECIDER_ONNX, DECIDER).run(inputs(3)).shape == (1, 3)


def test_a_model_with_control_flow_is_refused() -> None:
    model = decider()
    branch = onnx.helper.make_graph([], "branch", [], [])
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["x"], then_branch=branch, else_branch=branch))
    with pytest.raises(PolicyError, match="operator 'If' is not allowed"):
        Graph(model.SerializeToString())


def test_a_subgraph_on_an_allowed_operator_is_refused() -> None:
    model = decider()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("g", onnx.helper.make_graph([], "inner", [], [])))
    with pytest.raises(PolicyError, match="of its Attribute is not allowed"):
        Graph(model.SerializeToString())


def test_other_operator_domains_are_refused() -> None:
    model = decider()
    model.graph.node[0].domain = "com.microsoft"
    with pytest.raises(PolicyError, match=r"domain 'com\.microsoft'"):
        Graph(model.SerializeToString())
    model = decider()
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    with pytest.raises(PolicyError, match=r"domain 'my\.domain'"):
        Graph(model.SerializeToString())


def test_tensors_in_other_files_are_refused(tmp_path: Path) -> None:
    model = decider()
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.external_data_helper.write_external_data_tensors(model, str(tmp_path))
    with pytest.raises(PolicyError, match="of its Tensor is not allowed"):
        Graph(model.SerializeToString())


def test_functions_and_metadata_are_refused() -> None:
    model = decider()
    model.metadata_props.add(key="ort_config", value="{}")
    with pytest.raises(PolicyError, match="field 14 of its Model"):
        Graph(model.SerializeToString())
    model = decider()
    model.functions.add(name="f")
    with pytest.raises(PolicyError, match="field 25 of its Model"):
        Graph(model.SerializeToString())


def test_a_model_that_is_too_large_is_refused() -> None:
    with pytest.raises(PolicyError, match="bytes are more than"):
        Graph(bytes(MAX_BYTES + 1))


def test_a_model_of_very_many_operators_is_refused() -> None:
    """The trained ones have a few dozen."""
    model = decider()
    model.graph.node.extend([model.graph.node[0]] * MAX_NODES)
    with pytest.raises(PolicyError, match=f"more than {MAX_NODES} operators"):
        Graph(model.SerializeToString())


def test_a_model_of_very_many_fields_is_refused() -> None:
    with pytest.raises(PolicyError, match="more than 100000 fields"):
        Graph(b"\x08\x08" * 100_001)


@pytest.mark.parametrize("wire", [0, 1, 5])
def test_a_field_in_an_encoding_that_protobuf_drops_is_refused(wire: int) -> None:
    """Such a size of a tensor, or name, would be there for the check alone."""
    name = bytes([8 << 3 | wire]) + bytes(1 if wire == 0 else 8 if wire == 1 else 4)
    tensor = bytes([5 << 3 | 2, len(name)]) + name
    with pytest.raises(PolicyError, match="field 8 of its Tensor"):
        Graph(bytes([7 << 3 | 2, len(tensor)]) + tensor)


def test_shapes_are_told_as_onnxruntime_makes_them() -> None:
    """Of the shipped models, with every tensor made an output of theirs, for several sizes."""
    for name, signature in (("decider", DECIDER), ("fusion", FUSION)):
        model = onnx.load_model_from_string((COLD / f"{name}.onnx").read_bytes())
        made = [node.output[0] for node in model.graph.node]
        for output in made[:-1]:
            model.graph.output.append(onnx.ValueInfoProto(name=output))
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for size in (1, 2, 5):
            given = {
                key: np.zeros([size if axis is None else axis for axis in shape], np.int64 if "64" in kind else "f")
                for key, (kind, shape) in signature.items()
                if key != "logits"
            }
            shapes = {output: array.shape for output, array in zip(made, session.run(made, given), strict=True)}
            told = Graph(model.SerializeToString()).shapes([(key, array.shape) for key, array in given.items()])
            assert {output: told[output] for output in made} == shapes


def test_no_bytes_whatever_raise_anything_but_a_policy_error() -> None:
    rng = np.random.default_rng(0)
    for cut in rng.integers(0, len(DECIDER_ONNX), 50):
        with pytest.raises(PolicyError):
            Session(DECIDER_ONNX[:cut], DECIDER)
    for _ in range(50):
        with pytest.raises(PolicyError):
            Session(rng.bytes(200), DECIDER)
    for data in (b"", b"\xff" * 20, b"\x0b", b"\x3a\x7f", b"\x3a\x05\x2a\x03\x0a\x01\x80", b"no model"):
        with pytest.raises(PolicyError):
            Session(data, DECIDER)


def test_a_model_with_another_signature_is_refused() -> None:
    with pytest.raises(PolicyError, match="Gemm does not fit"):
        Session(DECIDER_ONNX, FUSION)
    with pytest.raises(PolicyError, match="has inputs and outputs"):
        Session(DECIDER_ONNX, {**DECIDER, "more": ("tensor(float)", (None,))})


def test_a_failing_run_is_a_policy_error_and_the_session_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(DECIDER_ONNX, DECIDER)
    with pytest.raises(PolicyError, match="onnxruntime"):
        session.run({**inputs(2), "ids": np.array([0, 99])})
    with pytest.raises(PolicyError, match="Gemm does not fit"):
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


Given = tuple[str, list[str], dict[str, Any]]  # an operator, what it is given, and its attributes


def hostile(*nodes: Given, **weights: Any) -> bytes:
    """The shipped decider, and beside it these operators: each makes "x0", "x1" ... and none of them is needed."""
    model = decider()
    for number, (operator, given, attributes) in enumerate(nodes):
        model.graph.node.append(onnx.helper.make_node(operator, given, [f"x{number}"], **attributes))
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    kept = f"x{len(nodes) - 1}"  # or onnxruntime leaves them out: added to the answer, as a factor of nought
    model.graph.node.append(onnx.helper.make_node("ReduceSum", [kept, "all"], ["sum"], keepdims=0))
    model.graph.node.append(onnx.helper.make_node("Mul", ["sum", "nought"], ["nothing"]))
    model.graph.node[[*model.graph.node].index(last(model))].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "nothing"], ["logits"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 1], np.int64), "all"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((), np.float32), "nought"))
    return bytes(model.SerializeToString())


def last(model: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto = next(node for node in model.graph.node if "logits" in node.output)
    return found


def doubled(times: int) -> list[Given]:
    return [("Concat", [f"x{n - 1}" if n else "v", f"x{n - 1}" if n else "v"], {"axis": 0}) for n in range(times)]


V = np.ones((4000, 1), np.float32)
HOSTILE = {
    "a product of weights": (hostile(("MatMul", ["v", "w"], {}), v=V.repeat(10, 0), w=V.repeat(10, 0).T.copy()), 2),
    "a sum of weights": (hostile(("Add", ["v", "w"], {}), v=V.repeat(10, 0), w=V.repeat(10, 0).T.copy()), 2),
    "copies of copies": (hostile(*doubled(20), v=V), 2),
    "rows over and over": (
        hostile(("Gather", ["v", "i"], {}), v=V.repeat(100, 1).T.copy(), i=np.zeros((1, 20_000), np.int64)[0]),
        2,
    ),
    "steps": (
        hostile(*[("MatMul", [f"x{n - 1}" if n else "m", "m"], {}) for n in range(900)], m=np.ones((1000, 1000), "f")),
        2,
    ),
    "what grows with the endpoints": (
        hostile(("MatMul", ["row", "w"], {}), ("Gather", ["x0", "ids"], {}), row=V[:1], w=np.ones((1, 100_000), "f")),
        2_000,
    ),
}


def test_a_model_that_asks_for_much_is_refused_within_a_little_memory() -> None:
    """Each in a process of its own that may take a gigabyte: onnxruntime would take up to seven, or minutes."""
    script = "from tests.policy.test_onnx import *\nfor name in HOSTILE: say_how_it_is_refused(name)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    refused = dict(line.split(": ", 1) for line in said.stdout.splitlines())
    assert refused.keys() == HOSTILE.keys()
    assert [name for name, why in refused.items() if "are allowed in a policy" not in why] == []


def say_how_it_is_refused(name: str) -> None:
    """Open a model in a fork of this process and print why that cannot be."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    model, endpoints = HOSTILE[name]
    resource.setrlimit(resource.RLIMIT_AS, (2**30 + held(), 2**30 + held()))
    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
    try:
        Session(model, DECIDER).run(inputs(endpoints))
    except PolicyError as error:
        print(f"{name}: {error}", flush=True)
    finally:
        os._exit(0)


def held() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
