from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from focalroute.core.records import F32
from focalroute.learn.nets import DeciderNet, FusionNet, decider_pass, fusion_pass, parameters
from focalroute.observe import layout

DC, DE = layout.width(layout.CONTEXT), layout.width(layout.ENDPOINT)
FM, FC = layout.width(layout.MEMBER), layout.width(layout.CANDIDATE)
MEMBER = layout.slices(layout.MEMBER)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> F32:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def random_decider(rng: np.random.Generator, vocabulary: int = 5) -> DeciderNet:
    net = DeciderNet.initial(rng, vocabulary=vocabulary)
    return replace(net, **{name: normal(rng, *array.shape, scale=0.3) for name, array in parameters(net).items()})


def random_fusion(rng: np.random.Generator, vocabulary: int = 5) -> FusionNet:
    net = FusionNet.initial(rng, vocabulary=vocabulary)
    return replace(net, **{name: normal(rng, *array.shape, scale=0.3) for name, array in parameters(net).items()})


def random_members(rng: np.random.Generator, *shape: int) -> F32:
    members = normal(rng, *shape, FM)
    members[..., MEMBER["present"]] = 1
    return members


def test_decider_pass_is_its_formula_one_endpoint_at_a_time() -> None:
    rng = np.random.default_rng(0)
    net = random_decider(rng)
    context, endpoints, ids = normal(rng, 3, DC), normal(rng, 3, 4, DE), np.array([2, 0, 5, 1])
    hidden = np.concatenate([net.hidden_context, net.hidden_endpoint, net.hidden_name])
    skip = np.concatenate([net.skip_context, net.skip_endpoint, net.skip_name])
    logits, _ = decider_pass(net, context, endpoints, ids)
    assert logits.shape == (3, 4)
    assert logits.dtype == np.float32
    for b in range(3):
        for i in range(4):
            x = np.concatenate([context[b], endpoints[b, i], net.names[ids[i]]])
            expected = x @ skip + net.bias[0] + np.maximum(x @ hidden + net.hidden_bias, 0) @ net.out
            assert logits[b, i] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_fusion_pass_is_its_formula_one_candidate_at_a_time() -> None:
    rng = np.random.default_rng(1)
    net = random_fusion(rng)
    members, candidates, ids = random_members(rng, 2, 3, 4), normal(rng, 2, 3, FC), rng.integers(0, 6, (2, 4))
    logits, _ = fusion_pass(net, members, candidates, ids)
    assert logits.shape == (2, 3)
    assert logits.dtype == np.float32
    for b in range(2):
        for k in range(3):
            c = candidates[b, k]
            linear, pooled = c @ net.skip_candidate, np.zeros(net.phi_bias.size)
            for x, name in zip(members[b, k], ids[b], strict=True):
                linear += x @ net.skip_member + net.vote[name] * x[MEMBER["vote"]].item()
                pooled += np.maximum(x @ net.phi_member + net.names[name] @ net.phi_name + net.phi_bias, 0)
            hidden = np.maximum(pooled @ net.hidden_pool + c @ net.hidden_candidate + net.hidden_bias, 0)
            assert logits[b, k] == pytest.approx(linear + hidden @ net.out, rel=1e-4, abs=1e-5)


def test_a_row_of_a_batch_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(2)
    decider, fusion = random_decider(rng), random_fusion(rng)
    context, endpoints, ids = normal(rng, 5, DC), normal(rng, 5, 3, DE), np.array([1, 2, 3])
    members, candidates, names = random_members(rng, 5, 2, 3), normal(rng, 5, 2, FC), rng.integers(0, 6, (5, 3))
    np.testing.assert_allclose(
        decider_pass(decider, context, endpoints, ids)[0][2:3],
        decider_pass(decider, context[2:3], endpoints[2:3], ids)[0],
        atol=1e-5,
    )
    np.testing.assert_allclose(
        fusion_pass(fusion, members, candidates, names)[0][2:3],
        fusion_pass(fusion, members[2:3], candidates[2:3], names[2:3])[0],
        atol=1e-5,
    )


def test_fusion_does_not_depend_on_the_order_of_the_members() -> None:
    rng = np.random.default_rng(3)
    net, order = random_fusion(rng), np.array([3, 1, 0, 2])
    members, candidates, ids = random_members(rng, 2, 3, 4), normal(rng, 2, 3, FC), rng.integers(0, 6, (2, 4))
    shuffled, _ = fusion_pass(net, members[:, :, order], candidates, ids[:, order])
    np.testing.assert_allclose(fusion_pass(net, members, candidates, ids)[0], shuffled, atol=1e-5)


def test_padding_with_zero_members_changes_nothing_whatever_their_name() -> None:
    rng = np.random.default_rng(4)
    net = random_fusion(rng)
    members, candidates, ids = random_members(rng, 2, 3, 4), normal(rng, 2, 3, FC), rng.integers(0, 6, (2, 4))
    padded = np.concatenate([members, np.zeros((2, 3, 2, FM), np.float32)], axis=2)
    padded_ids = np.concatenate([ids, np.array([[1, 5], [2, 0]])], axis=1)
    logits, _ = fusion_pass(net, members, candidates, ids)
    np.testing.assert_allclose(logits, fusion_pass(net, padded, candidates, padded_ids)[0], atol=1e-5)


def test_a_new_net_scores_everything_zero_and_is_the_same_for_the_same_seed() -> None:
    first, second = (DeciderNet.initial(np.random.default_rng(7), vocabulary=2) for _ in range(2))
    for name, array in parameters(first).items():
        np.testing.assert_array_equal(array, parameters(second)[name])
    rng = np.random.default_rng(5)
    assert not decider_pass(first, normal(rng, 2, DC), normal(rng, 2, 3, DE), np.arange(3))[0].any()
    fusion = FusionNet.initial(rng, vocabulary=2)
    members, candidates = random_members(rng, 2, 3, 2), normal(rng, 2, 3, FC)
    assert not fusion_pass(fusion, members, candidates, np.ones((2, 2), int))[0].any()
    assert first.out.shape == (32,)
    assert first.hidden_context.any()
    assert fusion.hidden_pool.any()
