"""The keys of a Redis store. All have one hash tag, so that a cluster keeps them together and a script may use any."""

from __future__ import annotations

from dataclasses import dataclass

#: Streams: the ids of answers, feedback, the ids of answers that were probed, and bills.
ANSWERS, FEEDBACK, PROBED, LEDGER = "answers", "feedback", "probed", "ledger"
#: Hashes: sums by endpoint, money held back, what was measured of endpoints, who is out of use, the last call of each
#: writer, the state of the policy, and its files.
TOTALS, RESERVATIONS, CAPABILITIES, HEALTH, WRITERS, POLICY, BUNDLES = (
    "totals", "reservations", "capabilities", "health", "writers", "policy", "bundles"
)  # fmt: skip
#: The consumer group of the feedback stream: what its one consumer has not acknowledged, no update was about yet.
GROUP = "learner"
#: Every script gets these, in this order; the key of each answer it touches follows.
FIXED = (
    *(ANSWERS, FEEDBACK, PROBED, LEDGER, TOTALS, RESERVATIONS, "due", "overdue", "balances", "accounts"),
    *(CAPABILITIES, HEALTH, WRITERS, POLICY, BUNDLES),
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of the keys under a prefix."""

    prefix: str

    def __getitem__(self, name: str) -> str:
        """The key of this name."""
        return f"{{{self.prefix}}}:{name}"

    @property
    def fixed(self) -> list[str]:
        """Those that every script gets."""
        return [self[name] for name in FIXED]

    def answer(self, answer_id: str) -> str:
        """The hash of one answer."""
        return self[f"answer:{answer_id}"]
