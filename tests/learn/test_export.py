from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32
from focalroute.learn.export import decider_model, decider_net, der_model, fusion_model, fusion_net
from focalroute.learn.nets import DeciderNet, FusionNet, decider_pass, fusion_pass, parameters
from focalroute.observe import layout
from focalroute.policy.bundle import DECIDER, FUSION
from focalroute.policy.onnx_model import OPERATORS, Session

DC, DE = layout.width(layout.CONTEXT), layout.width(layout.ENDPOINT)
FM, FC = layout.width(layout.MEMBER), layout.width(layout.CANDIDATE)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> F32:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def random_decider(seed: int, vocabulary: int = 6) -> DeciderNet:
    rng = np.random.default_rng(seed)
    net = DeciderNet.initial(rng, vocabulary=vocabulary)
    return replace(net, **{name: normal(rng, *array.shape, scale=0.25) for name, array in parameters(net).items()})


def random_fusion(seed: int, vocabulary: int = 6) -> FusionNet:
    rng = np.random.default_rng(seed)
    net = FusionNet.initial(rng, vocabulary=vocabulary)
    return replace(net, **{name: normal(rng, *array.shape, scale=0.25) for name, array in parameters(net).items()})


@pytest.mark.parametrize("seed", range(4))
def test_decider_model_computes_what_the_net_does(seed: int) -> None:
    net, rng = random_decider(seed), np.random.default_rng(100 + seed)
    session = Session(decider_model(net), DECIDER)
    for b, n in ((1, 1), (1, 12), (3, 2), (7, 64), (2, 0)):
        context, endpoints, ids = normal(rng, b, DC), normal(rng, b, n, DE), rng.integers(0, 7, n)
        served = session.run({"context": context, "endpoints": endpoints, "ids": ids})
        np.testing.assert_allclose(served, decider_pass(net, context, endpoints, ids)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_fusion_model_computes_what_the_net_does(seed: int) -> None:
    """Members that are present, rows of padding, and no member at all."""
    net, rng = random_fusion(seed), np.random.default_rng(100 + seed)
    session = Session(fusion_model(net), FUSION)
    for b, k, m in ((1, 4, 4), (1, 10, 1), (3, 2, 12), (5, 1, 3), (1, 3, 0)):
        members, candidates, ids = normal(rng, b, k, m, FM), normal(rng, b, k, FC), rng.integers(0, 7, (b, m))
        members[..., 0] = 1
        members[:, :, 3:5] = 0
        served = session.run({"members": members, "candidates": candidates, "ids": ids})
        np.testing.assert_allclose(served, fusion_pass(net, members, candidates, ids)[0], atol=1e-5, rtol=1e-5)


def test_equal_nets_give_equal_bytes() -> None:
    assert decider_model(random_decider(1)) == decider_model(random_decider(1)) != decider_model(random_decider(2))
    assert fusion_model(random_fusion(1)) == fusion_model(random_fusion(1)) != fusion_model(random_fusion(2))


def test_a_net_is_read_back_from_its_model() -> None:
    decider, fusion = random_decider(3), random_fusion(3)
    for name, array in parameters(decider_net(decider_model(decider))).items():
        np.testing.assert_array_equal(array, parameters(decider)[name])
    for name, array in parameters(fusion_net(fusion_model(fusion))).items():
        np.testing.assert_array_equal(array, parameters(fusion)[name])


@pytest.mark.parametrize("model", [b"", b"no model", fusion_model(random_fusion(0))])
def test_reading_back_anything_else_is_a_policy_error(model: bytes) -> None:
    with pytest.raises(PolicyError, match="DeciderNet"):
        decider_net(model)


SEQUENTIAL = {"hidden": (5, 2), "hidden_bias": (2,), "out": (2, 3), "out_bias": (3,)}


def test_the_operators_written_are_exactly_those_that_serving_allows() -> None:
    net = {name: np.zeros(shape, np.float32) for name, shape in SEQUENTIAL.items()}
    models = (decider_model(random_decider(0)), fusion_model(random_fusion(0)), der_model(net))
    written = [onnx.load_model_from_string(model) for model in models]
    assert {node.op_type for model in written for node in model.graph.node} == set(OPERATORS)
