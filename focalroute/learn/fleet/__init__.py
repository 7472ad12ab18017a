"""A fleet of workers on one store: they follow one policy, which an elected learner makes from everybody's feedback."""

from __future__ import annotations

from focalroute.learn.fleet.follower import Follower, fetch

__all__ = ["Follower", "fetch"]
