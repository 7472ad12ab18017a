"""Policies with prescribed decisions, for tests and benchmarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from examples.shipped_policy.training import cold_fusion
from focalroute.learn.export import decider_model, fusion_model
from focalroute.observe.layout import CONTEXT, ENDPOINT, slices
from focalroute.policy.publish import publish
from tests.by_hand import linear_decider


def ask_all(root: Path) -> Path:
    """A folder whose policy asks all endpoints in round 1 and nobody after; to be served greedily."""
    return _first_round_only(root, first=40.0, cost_weight=0.0)


def thrifty(root: Path) -> Path:
    """A folder whose policy asks each endpoint with a probability that falls with the cost weight, in round 1."""
    return _first_round_only(root, first=20.0, cost_weight=-8.0)


def _first_round_only(root: Path, **weights: float) -> Path:
    linear = linear_decider()
    context = np.zeros_like(linear.skip_context)
    for name, weight in weights.items():
        context[slices(CONTEXT)[name]] = weight
    bias = np.full(1, -20, np.float32)
    decider = replace(linear, skip_context=context, skip_endpoint=np.zeros_like(linear.skip_endpoint), bias=bias)
    publish(root, decider=decider_model(decider), fusion=fusion_model(cold_fusion()), names=(), parent=None)
    return root


def ask_the_cheapest(root: Path) -> Path:
    """A folder whose policy asks the cheapest endpoint in round 1 and nobody after; to be served greedily."""
    linear = linear_decider()
    flat = {name: np.zeros_like(getattr(linear, name)) for name in ("skip_context", "skip_endpoint")}
    decider = decider_model(replace(linear, **flat, bias=np.full(1, -20, np.float32)))
    publish(root, decider=decider, fusion=fusion_model(cold_fusion()), names=(), parent=None)
    return root


def ask_the_affordable(root: Path) -> Path:
    """A folder whose policy asks, in round 1, all endpoints that take at most a tenth from the reward; greedily."""
    linear = linear_decider()
    endpoint = np.zeros_like(linear.skip_endpoint)
    endpoint[slices(ENDPOINT)["log_cost_penalty"]] = -20.0
    context = np.zeros_like(linear.skip_context)
    context[slices(CONTEXT)["first"]] = 40.0
    decider = replace(linear, skip_context=context, skip_endpoint=endpoint, bias=np.full(1, -60, np.float32))
    publish(root, decider=decider_model(decider), fusion=fusion_model(cold_fusion()), names=(), parent=None)
    return root
