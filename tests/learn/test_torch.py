"""The numpy learner against torch: the same passes, losses, optimiser and whole update, to 1e-6 in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from focalroute.core.errors import ConfigError
from focalroute.learn.adam import Adam, Moments
from focalroute.learn.backend import NUMPY, open_backend
from focalroute.learn.losses import fusion_loss, likelihood, log_posterior, surrogate_loss
from focalroute.learn.mappo import Hyperparameters, Learner, gae, update
from focalroute.learn.nets import Floats, Vjp, parameters
from focalroute.learn.trajectory import HeadBatch
from focalroute.policy.decider import EXPLORATION
from tests.learn.batches import random_batch, random_learner

SETTINGS = Hyperparameters(minibatch=64)
WILD = replace(SETTINGS, decider_rate=0.5, fusion_rate=0.5)  # both nets stop early and are pulled back


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed (extra train)")


@pytest.fixture(scope="module")
def reference(torch: Any) -> Any:
    """The update written a second time; it imports torch."""
    from tests.benchmarks import torch_update

    return torch_update


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, torch: Any) -> str:
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return name


def close(found: Any, expected: Any, what: str = "") -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=what)


def same_pass(mine: tuple[Floats, Vjp], theirs: tuple[Floats, Vjp], seed: int) -> None:
    """Equal logits, and equal gradients of every array, however often they are pulled."""
    close(theirs[0], mine[0])
    assert theirs[0].dtype == mine[0].dtype
    for turn in range(2):
        d = np.random.default_rng(seed + turn).standard_normal(mine[0].shape)
        expected, found = mine[1](d), theirs[1](d)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert found[name].shape == gradient.shape
            assert gradient.any()
            close(found[name], gradient, name)
        for table in found.keys() & {"names", "vote"}:
            assert not found[table][0].any()
            assert not expected[table][0].any()


@pytest.mark.parametrize("seed", range(3))
def test_every_pass_gives_the_same_logits_and_gradients(torch: Any, device: str, seed: int) -> None:
    """On batches with padding, closed heads, absent members and names that are not known."""
    learner, some = random_learner(seed, 6), random_batch(seed, episodes=40, pool=6)
    made, fused, other = some.decisions, some.fusions, open_backend("torch", device)
    assert (made.ids == 0).any()
    assert (fused.ids == 0).any()
    assert not made.heads.visited.all()
    assert not fused.offered.all()
    inputs = (learner.decider, made.context, made.endpoints, made.ids)
    same_pass(NUMPY.decider(*inputs), other.decider(*inputs), seed)
    shown = (learner.fusion, fused.members, fused.candidates, fused.ids)
    same_pass(NUMPY.fusion(*shown), other.fusion(*shown), seed)
    states = some.steps.states[some.steps.taken]
    same_pass(NUMPY.critic(learner.critic, states), other.critic(learner.critic, states), seed)


def test_float32_stays_float32(torch: Any) -> None:
    learner, some = random_learner(0, 6, np.float32), random_batch(0, episodes=3, pool=6).fusions
    logits, vjp = open_backend("torch").fusion(learner.fusion, some.members, some.candidates, some.ids)
    assert {logits.dtype, *(gradient.dtype for gradient in vjp(logits).values())} == {np.dtype(np.float32)}


def test_a_device_that_is_not_there_is_named(torch: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device: .*'abacus'"):
        open_backend("torch", "abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"^device: .*'cuda'"):
            open_backend("torch", "cuda")


def joint(torch: Any, z: Any, heads: HeadBatch) -> tuple[Any, Any]:
    """log pi and entropy by Bernoulli distributions; the clip passes gradients straight through."""
    least = torch.from_numpy(EXPLORATION / heads.pool)[:, None]
    far = torch.logit(1 - least)
    odds = torch.where(torch.from_numpy(heads.visited), z, -torch.inf).logsumexp(1)
    z = z - torch.where(torch.from_numpy(heads.must_pick), odds.clamp(max=0), 0)[:, None]
    distribution = torch.distributions.Bernoulli(logits=z + (z.clamp(-far, far) - z).detach())
    eligible = torch.from_numpy(heads.eligible)
    nobody = torch.where(torch.from_numpy(heads.visited), 1 - distribution.probs, 1).prod(1)
    somebody = torch.where(torch.from_numpy(heads.must_pick), 1 - nobody, 1)
    log_pi = (distribution.log_prob(torch.from_numpy(heads.picked).to(z.dtype)) * eligible).sum(1) - somebody.log()
    return log_pi, (distribution.entropy() * eligible).sum(1)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.0, -1.5), (6.0, 0.0)])
def test_the_surrogate_is_that_of_torchs_distributions(torch: Any, scale: float, shift: float) -> None:
    """Loss and gradient, with decisions clipped by the ratio, heads at their floor at the larger scale, or raised."""
    rng, heads = np.random.default_rng(0), random_batch(1, episodes=60).decisions.heads
    z = scale * rng.standard_normal(heads.picked.shape) + shift
    assert (np.abs(z - shift) > np.log(119)).any() == (scale > 1)
    weights, advantages = rng.uniform(0.2, 2, len(z)), rng.standard_normal(len(z))
    distribution = likelihood(z, heads)
    old = distribution.log_pi + rng.normal(0, 0.3, len(z))
    mine = surrogate_loss(distribution, old, weights, advantages, clip=0.2, entropy=0.01)

    leaf = torch.from_numpy(z).requires_grad_()
    log_pi, entropy = joint(torch, leaf, heads)
    log_ratio, gain = log_pi - torch.from_numpy(old), torch.from_numpy(advantages)
    ratio = log_ratio.exp()
    loss = -(torch.from_numpy(weights) * torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)).mean()
    (loss - 0.01 * entropy.mean()).backward()
    close(distribution.log_pi, log_pi.detach())
    close(distribution.entropy, entropy.detach())
    close(mine.loss, loss.item())
    close(mine.d_logits, leaf.grad)
    close(mine.approx_kl, (ratio - 1 - log_ratio).mean().item())
    assert 0.1 < mine.clip_fraction < 0.9


@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_the_fusions_loss_is_torchs_cross_entropy_and_divergence(torch: Any, penalty: float) -> None:
    """From labels, from labels that nobody has, and from bare rewards; over the candidates offered."""
    from torch.nn.functional import binary_cross_entropy, cross_entropy, kl_div

    some, rng = random_batch(2, episodes=80).fusions, np.random.default_rng(0)
    z, before = (2 * rng.standard_normal(some.offered.shape) for _ in range(2))
    rows = rng.permutation(80)[:60]
    old = log_posterior(before, some.offered)[rows]
    mine = fusion_loss(z[rows], some, rows, old, penalty=penalty)

    leaf = torch.from_numpy(z[rows]).requires_grad_()
    masked = leaf.masked_fill(~torch.from_numpy(some.offered[rows]), -torch.inf)
    known, bare = some.labelled[rows] & (some.right[rows] >= 0), ~some.labelled[rows]
    assert known.sum() + bare.sum() < 60
    by_label = cross_entropy(masked[known], torch.from_numpy(some.right[rows][known]), reduction="sum")
    answered = masked.softmax(1)[np.arange(60), some.answered[rows]]
    wished = torch.from_numpy((some.reward[rows].astype(np.float64) + 1) / 2)
    loss = (by_label + binary_cross_entropy(answered[bare], wished[bare], reduction="sum")) / (known | bare).sum()
    finite = masked.log_softmax(1).masked_fill(~torch.from_numpy(some.offered[rows]), 0)
    kl = kl_div(finite, torch.from_numpy(old), log_target=True, reduction="none")
    kl = kl[torch.from_numpy(some.offered[rows])].sum() / 60
    (loss + penalty * kl).backward()
    close(mine.loss, loss.item())
    close(mine.kl, kl.item())
    close(mine.d_logits, leaf.grad)


def test_the_advantages_are_the_definitions_sums(torch: Any, reference: Any) -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.standard_normal((9, 5)), rng.standard_normal((9, 5))
    theirs = reference.torch_gae(torch.from_numpy(rewards), torch.from_numpy(values), 0.9)
    close(gae(rewards, values, lam=0.9), theirs)


def test_adam_is_torchs(torch: Any) -> None:
    """Thirty steps, some clipped by the gradient's norm and some not."""
    rng = np.random.default_rng(0)
    start: dict[str, Floats] = {"a": rng.standard_normal((3, 4)), "b": rng.standard_normal(5)}
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    mine = Adam(start, Moments.zero(start), learning_rate=0.01, max_norm=1.0)
    theirs = torch.optim.Adam(leaves.values(), lr=0.01)
    clipped = []
    for turn in range(30):
        gradients = {name: (0.1 + turn % 3) * rng.standard_normal(array.shape) for name, array in start.items()}
        mine.step(gradients)
        for name, leaf in leaves.items():
            leaf.grad = torch.from_numpy(gradients[name].copy())
        clipped.append(torch.nn.utils.clip_grad_norm_(leaves.values(), 1.0).item() > 1)
        theirs.step()
    assert len(set(clipped)) == 2
    for name, leaf in leaves.items():
        close(mine.parameters[name], leaf.detach(), name)
        close(mine.moments.second[name], theirs.state[leaf]["exp_avg_sq"], name)


def nets(learner: Learner) -> dict[str, Mapping[str, Floats]]:
    return {
        "decider": parameters(learner.decider),
        "fusion": parameters(learner.fusion),
        "critic": parameters(learner.critic),
    }


@pytest.mark.parametrize("settings", [SETTINGS, WILD], ids=["settings", "wild"])
def test_a_whole_update_is_the_same_on_either_engine(torch: Any, device: str, settings: Hyperparameters) -> None:
    """Nets, moments and diagnostics, from the same batch and the same chance; and it did change the nets."""
    learner = random_learner(0, 6)
    some = random_batch(0, episodes=150, pool=6, learner=learner)
    (mine, said), (theirs, told) = (
        update(learner, some, settings, np.random.default_rng(7), passes=engine)
        for engine in (NUMPY, open_backend("torch", device))
    )
    assert (mine.moments["decider"].steps == mine.moments["fusion"].steps == 1) == (settings is WILD)
    close(list(asdict(told).values()), list(asdict(said).values()))
    for net, arrays in nets(mine).items():
        for name, array in arrays.items():
            assert not np.allclose(array, nets(learner)[net][name], rtol=0, atol=1e-4), name
            close(nets(theirs)[net][name], array, name)
            close(theirs.moments[net].first[name], mine.moments[net].first[name], name)
            close(theirs.moments[net].second[name], mine.moments[net].second[name], name)


@pytest.mark.parametrize("settings", [SETTINGS, WILD], ids=["settings", "wild"])
def test_a_whole_update_is_that_of_an_independent_one(reference: Any, settings: Hyperparameters) -> None:
    """Written with modules, autograd and torch's Adam, it shares only the shuffling."""
    learner = random_learner(3, 6)
    some = random_batch(3, episodes=150, pool=6, learner=learner)
    mine, _ = update(learner, some, settings, np.random.default_rng(7))
    theirs = reference.torch_update(learner, some, settings, np.random.default_rng(7))
    for net, arrays in nets(mine).items():
        assert theirs[net].keys() == arrays.keys()
        for name, array in arrays.items():
            close(theirs[net][name], array, f"{net} {name}")
