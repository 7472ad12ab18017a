from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from focalroute.learn.nets import DeciderNet, Floats, FusionNet, decider_pass, fusion_pass, parameters
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, MEMBER, width
from tests.learn.made import check_gradients, randomised


def decider(seed: int = 0) -> DeciderNet:
    return randomised(DeciderNet.initial(np.random.default_rng(0), vocabulary=5, hidden=6), seed)


def fusion(seed: int = 0) -> FusionNet:
    return randomised(FusionNet.initial(np.random.default_rng(0), vocabulary=5, phi=4, hidden=5), seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_deciders_gradients_are_those_of_finite_differences(seed: int) -> None:
    rng, net = np.random.default_rng(seed), decider(seed)
    seen, shown = rng.standard_normal((7, width(CONTEXT))), rng.standard_normal((7, 4, width(ENDPOINT)))
    ids, weights = rng.integers(0, 6, (7, 4)), rng.standard_normal((7, 4))

    def f(arrays: Mapping[str, Floats]) -> float:
        return float((weights * decider_pass(replace(net, **arrays), seen, shown, ids)[0]).sum())

    check_gradients(f, parameters(net), decider_pass(net, seen, shown, ids)[1](weights))


@pytest.mark.parametrize("seed", range(3))
def test_the_fusions_gradients_are_those_of_finite_differences(seed: int) -> None:
    rng, net = np.random.default_rng(seed), fusion(seed)
    members, candidates = rng.standard_normal((5, 3, 4, width(MEMBER))), rng.standard_normal((5, 3, width(CANDIDATE)))
    members[:, :, -1] = 0
    ids, weights = rng.integers(0, 6, (5, 4)), rng.standard_normal((5, 3))

    def f(arrays: Mapping[str, Floats]) -> float:
        return float((weights * fusion_pass(replace(net, **arrays), members, candidates, ids)[0]).sum())

    check_gradients(f, parameters(net), fusion_pass(net, members, candidates, ids)[1](weights))


def test_float32_stays_float32() -> None:
    """Neither logits nor gradients grow to float64 on the way."""
    net = randomised(DeciderNet.initial(np.random.default_rng(0), vocabulary=2), 0, np.float32)
    zeros = np.zeros((1, width(CONTEXT)), np.float32), np.zeros((1, 2, width(ENDPOINT)), np.float32)
    logits, vjp = decider_pass(net, *zeros, np.array([[1, 2]]))
    assert {logits.dtype, *(g.dtype for g in vjp(logits).values())} == {np.dtype(np.float32)}
    fuser = randomised(FusionNet.initial(np.random.default_rng(0), vocabulary=2), 0, np.float32)
    parts = np.zeros((1, 2, 2, width(MEMBER)), np.float32), np.zeros((1, 2, width(CANDIDATE)), np.float32)
    logits, vjp = fusion_pass(fuser, *parts, np.array([[1, 2]]))
    assert {logits.dtype, *(g.dtype for g in vjp(logits).values())} == {np.dtype(np.float32)}
