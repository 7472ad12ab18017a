"""How to train offline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """How to train.

    Attributes:
        rounds: the most rounds a query may take.
        window: T of the observer.
        validation: share of the log, its end, that is held out to choose by; then it is learned from as well.
        fusion_epochs: over random sets.
        fusion_rate: of Adam; likewise ``decider_rate``.
        lookahead_steps: of the regression that gives the Decider another start; ``lookahead_rate``: of its Adam.
        iterations: of the policy gradient.
        queries: in a batch of the policy gradient.
        samples: rollouts of each of these.
        entropy: weight of the Decider's entropy bonus.
        renew: iterations after which windows are renewed and the policy is measured.
        probed: share of queries on which an endpoint that was not asked is looked at all the same.
        finish: iterations at the end, with the validation part.
        finish_epochs: of the Fusion at the end, on the sets that are asked.
        critic_steps: of the regression that leaves online updates a critic.
    """

    rounds: int = 3
    window: int = 500
    validation: float = 0.2
    fusion_epochs: int = 12
    fusion_rate: float = 3e-3
    decider_rate: float = 1.5e-3
    lookahead_steps: int = 300
    lookahead_rate: float = 3e-3
    iterations: int = 400
    queries: int = 128
    samples: int = 16
    entropy: float = 0.003
    renew: int = 80
    probed: float = 0.01
    finish: int = 40
    finish_epochs: int = 2
    critic_steps: int = 300

    @property
    def steps(self) -> int:
        """Units of progress in all."""
        return self.fusion_epochs + self.lookahead_steps + self.iterations + self.finish + self.critic_steps
