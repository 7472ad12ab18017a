"""The update of `focalroute.learn.mappo`, written a second time with torch: modules, autograd, optim.

None of the numpy learner's mathematics is used here. `tests.learn.test_torch` checks that both are equal;
`tests.benchmarks.updates` compares their speed. This one has all optimisations that were found: modules that read
shared inputs once instead of concatenating them, and the fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, mse_loss, softplus

from focalroute.learn.mappo import Hyperparameters, Learner
from focalroute.learn.trajectory import Batch
from focalroute.policy.decider import EXPLORATION

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]


class TorchDecider(nn.Module):  # type: ignore[misc]  # torch is not there for the type checker
    """`DeciderNet`; its embedding's row 0 is padding."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.names = _embedding(net.names)
        self.skip_context = _linear(net.skip_context[:, None], net.bias)
        self.skip_endpoint = _linear(net.skip_endpoint[:, None])
        self.skip_name = _linear(net.skip_name[:, None])
        self.hidden_context = _linear(net.hidden_context, net.hidden_bias)
        self.hidden_endpoint = _linear(net.hidden_endpoint)
        self.hidden_name = _linear(net.hidden_name)
        self.out = _linear(net.out[:, None])

    def forward(self, context: Tensor, endpoints: Tensor, ids: Tensor) -> Tensor:
        names = self.names(ids)
        hidden = self.hidden_context(context)[:, None] + self.hidden_endpoint(endpoints) + self.hidden_name(names)
        linear = self.skip_context(context)[:, None] + self.skip_endpoint(endpoints) + self.skip_name(names)
        return (self.out(hidden.relu()) + linear).squeeze(-1)

    def arrays(self) -> dict[str, Any]:
        """Its parameters in the shapes of `DeciderNet`."""
        found = {"names": self.names.weight, "bias": self.skip_context.bias}
        found |= {"hidden_bias": self.hidden_context.bias, "out": self.out.weight[0]}
        found |= {name: getattr(self, name).weight[0] for name in ("skip_context", "skip_endpoint", "skip_name")}
        parts = ("hidden_context", "hidden_endpoint", "hidden_name")
        return _numpy(found | {name: getattr(self, name).weight.T for name in parts})


class TorchFusion(nn.Module):  # type: ignore[misc]
    """`FusionNet`; column 0 of a member's features is "present", column 1 "vote"."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.names = _embedding(net.names)
        self.vote = _embedding(net.vote[:, None])
        self.skip_member = _linear(net.skip_member[:, None])
        self.skip_candidate = _linear(net.skip_candidate[:, None])
        self.phi_member = _linear(net.phi_member)
        self.phi_name = _linear(net.phi_name, net.phi_bias)
        self.hidden_pool = _linear(net.hidden_pool, net.hidden_bias)
        self.hidden_candidate = _linear(net.hidden_candidate)
        self.out = _linear(net.out[:, None])

    def forward(self, members: Tensor, candidates: Tensor, ids: Tensor) -> Tensor:
        present, vote = members[..., 0:1], members[..., 1:2]
        phi = (self.phi_member(members) + present * self.phi_name(self.names(ids))[:, None]).relu()
        hidden = (self.hidden_pool(phi.sum(2)) + self.hidden_candidate(candidates)).relu()
        linear = (self.skip_member(members) + vote * self.vote(ids)[:, None]).sum(2) + self.skip_candidate(candidates)
        return (self.out(hidden) + linear).squeeze(-1)

    def arrays(self) -> dict[str, Any]:
        """Its parameters in the shapes of `FusionNet`."""
        found = {"names": self.names.weight, "vote": self.vote.weight[:, 0], "phi_bias": self.phi_name.bias}
        found |= {"hidden_bias": self.hidden_pool.bias, "out": self.out.weight[0]}
        found |= {name: getattr(self, name).weight[0] for name in ("skip_member", "skip_candidate")}
        parts = ("phi_member", "phi_name", "hidden_pool", "hidden_candidate")
        return _numpy(found | {name: getattr(self, name).weight.T for name in parts})


class TorchCritic(nn.Module):  # type: ignore[misc]
    """`CriticNet`."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.hidden = _linear(net.hidden, net.hidden_bias)
        self.out = _linear(net.out[:, None], net.bias)

    def forward(self, states: Tensor) -> Tensor:
        return self.out(self.hidden(states).tanh()).squeeze(-1)

    def arrays(self) -> dict[str, Any]:
        """Its parameters in the shapes of `CriticNet`."""
        hidden, out = self.hidden, self.out
        return _numpy({"hidden": hidden.weight.T, "hidden_bias": hidden.bias, "out": out.weight[0], "bias": out.bias})


def torch_update(
    learner: Learner, batch: Batch, settings: Hyperparameters, rng: np.random.Generator
) -> dict[str, dict[str, Any]]:
    """The parameters of "decider", "fusion" and "critic" after an update from fresh moments."""
    dtype = torch.from_numpy(learner.critic.out).dtype
    critic = TorchCritic(learner.critic)
    states, rewards, taken = (
        torch.from_numpy(part) for part in (batch.steps.states, batch.steps.rewards, batch.steps.taken)
    )
    states = states.to(dtype)
    with torch.no_grad():
        before = critic(states)
        advantages = torch_gae(rewards.to(dtype), before * taken, settings.gae_lambda)
    decider = _decided(TorchDecider(learner.decider), batch, advantages, settings, rng)
    seen, targets = states[taken], (advantages + before)[taken]
    everyone = np.arange(len(targets))

    def value_loss(rows: Tensor) -> tuple[Tensor, Tensor]:
        return mse_loss(critic(seen[rows]), targets[rows]) / 2, torch.zeros(())

    _descend(critic, value_loss, everyone, settings.critic_rate, np.inf, settings, rng)
    fusion = _fused(TorchFusion(learner.fusion), batch, settings, rng)
    return {"decider": decider.arrays(), "fusion": fusion.arrays(), "critic": critic.arrays()}


def torch_gae(rewards: Tensor, values: Tensor, lam: float) -> Tensor:
    """Advantages (B, T), gamma = 1, by the definition: sums of discounted one-step errors."""
    size = values.shape[1]
    errors = rewards + torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1) - values
    powers = torch.tensor(
        [[lam ** (later - t) if later >= t else 0.0 for t in range(size)] for later in range(size)], dtype=values.dtype
    )
    return errors @ powers


def log_pi_and_entropy(z: Tensor, heads: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(S,) each, of logits (S, P) whose probabilities are clipped with a gradient straight through the clip."""
    least = EXPLORATION / heads["pool"][:, None].to(z.dtype)
    far = torch.log((1 - least) / least)
    z = z + (z.clamp(-far, far) - z).detach()
    log_in, log_out = logsigmoid(z), logsigmoid(-z)
    each = torch.where(heads["picked"], log_in, log_out)
    chosen = (each * heads["eligible"]).sum(1)
    nobody = (log_out * heads["visited"]).sum(1)
    somebody = torch.where(heads["must_pick"], torch.log(-torch.expm1(nobody)), 0)
    entropy = softplus(z) - z * torch.sigmoid(z)
    return chosen - somebody, (entropy * heads["eligible"]).sum(1)


def _decided(
    net: TorchDecider, batch: Batch, advantages: Tensor, settings: Hyperparameters, rng: np.random.Generator
) -> TorchDecider:
    made, dtype = batch.decisions, net.out.weight.dtype
    context, endpoints = (torch.from_numpy(part).to(dtype) for part in (made.context, made.endpoints))
    ids, log_mu = torch.from_numpy(made.ids), torch.from_numpy(made.log_mu).to(dtype)
    heads = {
        name: torch.from_numpy(array)
        for name in made.heads.__slots__
        if (array := getattr(made.heads, name)) is not None  # no decision here is for exactly one
    }
    normalised = advantages[torch.from_numpy(made.episode), torch.from_numpy(made.step)]
    normalised = (normalised - normalised.mean()) / normalised.std(correction=0)
    with torch.no_grad():
        old, _ = log_pi_and_entropy(net(context, endpoints, ids), heads)
    weights = (old - log_mu).exp().clamp(max=settings.max_weight)

    def loss(rows: Tensor) -> tuple[Tensor, Tensor]:
        here = {name: part[rows] for name, part in heads.items()}
        log_pi, entropy = log_pi_and_entropy(net(context[rows], endpoints[rows], ids[rows]), here)
        log_ratio, advantage = log_pi - old[rows], normalised[rows]
        ratio = log_ratio.exp()
        bounded = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        gain = weights[rows] * torch.minimum(ratio * advantage, bounded * advantage)
        return -(gain + settings.entropy * entropy).mean(), (ratio - 1 - log_ratio).mean()

    start = {name: part.clone() for name, part in net.state_dict().items()}
    _descend(net, loss, np.arange(len(old)), settings.decider_rate, settings.target_kl, settings, rng)
    _pull_back(net, start, lambda: loss(torch.arange(len(old)))[1], settings.target_kl)
    return net


def _fused(net: TorchFusion, batch: Batch, settings: Hyperparameters, rng: np.random.Generator) -> TorchFusion:
    fusions, dtype = batch.fusions, net.out.weight.dtype
    members, candidates = (torch.from_numpy(part).to(dtype) for part in (fusions.members, fusions.candidates))
    ids, offered, labelled, answered, right = (
        torch.from_numpy(part)
        for part in (fusions.ids, fusions.offered, fusions.labelled, fusions.answered, fusions.right)
    )
    target = torch.where(labelled, right, answered)
    y = torch.where(labelled, 1.0, (torch.from_numpy(fusions.reward).to(dtype) + 1) / 2)

    def log_q(rows: Tensor) -> Tensor:
        logits = net(members[rows], candidates[rows], ids[rows])
        return logits.masked_fill(~offered[rows], -1e9).log_softmax(1)

    with torch.no_grad():
        old = log_q(torch.arange(len(y)))

    def loss(rows: Tensor) -> tuple[Tensor, Tensor]:
        now = log_q(rows)
        at = now.gather(1, target[rows].clamp(min=0)[:, None])[:, 0]
        rest = torch.log((1 - at.exp()).clamp(min=1e-6))
        said, told = y[rows], target[rows] >= 0
        nll = (-(said * at + (1 - said) * rest) * told).sum() / told.sum().clamp(min=1)
        kl = ((old[rows].exp() * (old[rows] - now)) * offered[rows]).sum() / len(rows)
        return nll + settings.fusion_penalty * kl, kl

    start = {name: part.clone() for name, part in net.state_dict().items()}
    _descend(net, loss, np.arange(len(y)), settings.fusion_rate, settings.fusion_target_kl, settings, rng)
    _pull_back(net, start, lambda: loss(torch.arange(len(y)))[1], settings.fusion_target_kl)
    return net


def _descend(
    net: nn.Module,
    loss: Loss,
    everyone: Any,
    rate: float,
    target: float,
    settings: Hyperparameters,
    rng: np.random.Generator,
) -> None:
    """Adam over shuffled minibatches until one of them finds the net too far."""
    adam = torch.optim.Adam(net.parameters(), lr=rate, fused=True)
    for _ in range(settings.epochs):
        for rows in np.array_split(rng.permutation(everyone), max(1, round(len(everyone) / settings.minibatch))):
            found, distance = loss(torch.from_numpy(rows))
            if distance.item() > target:
                return
            adam.zero_grad()
            found.backward()
            nn.utils.clip_grad_norm_(net.parameters(), settings.max_norm)
            adam.step()


def _pull_back(net: nn.Module, start: dict[str, Tensor], distance: Callable[[], Tensor], target: float) -> None:
    """Half the way back, and again, while the net is beyond 1.5 times the target."""
    end = {name: part.clone() for name, part in net.state_dict().items()}
    with torch.no_grad():
        for halvings in range(8):
            net.load_state_dict({name: start[name] + 0.5**halvings * (end[name] - start[name]) for name in start})
            if distance().item() <= 1.5 * target:
                return
    net.load_state_dict(start)


def _linear(weights: Any, bias: Any = None) -> nn.Linear:
    layer = nn.Linear(*weights.shape, bias=bias is not None)
    layer.weight = nn.Parameter(torch.tensor(weights.T))
    if bias is not None:
        layer.bias = nn.Parameter(torch.tensor(bias))
    return layer


def _embedding(table: Any) -> nn.Embedding:
    return nn.Embedding.from_pretrained(torch.tensor(table), freeze=False, padding_idx=0)


def _numpy(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}
