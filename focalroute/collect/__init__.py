"""Asks every endpoint of a pool a dataset, and writes the outcome log that training and evaluation read."""

from focalroute.collect.collecting import Collected, collect
from focalroute.collect.dataset import Question, read_dataset

__all__ = ["Collected", "Question", "collect", "read_dataset"]
