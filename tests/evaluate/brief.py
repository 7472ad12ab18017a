"""A training with every step, each very short, for tests that do not depend on its quality."""

from __future__ import annotations

from functools import partial

import pytest

from focalroute.learn.offline import reinforce
from focalroute.learn.offline.reinforce import OfflineSettings

__all__ = ["brief_settings", "brief_training", "shorten"]

#: So few steps, unless an argument says otherwise.
brief_settings = partial(
    OfflineSettings,
    fusion_epochs=2,
    lookahead_steps=4,
    queries=16,
    samples=4,
    finish=2,
    finish_epochs=1,
    critic_steps=4,
)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Have `focalroute train` take that few steps in this process."""
    patch.setattr(reinforce, "OfflineSettings", brief_settings)


@pytest.fixture
def brief_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shorten`, while a test runs."""
    shorten(monkeypatch)
