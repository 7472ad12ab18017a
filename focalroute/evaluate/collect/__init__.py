"""Asks every endpoint of a pool a dataset, and writes the outcome log that training and evaluation read.

`harness` makes such a log of what leaderboards publish instead.
"""

from focalroute.evaluate.collect.collecting import Collected, collect
from focalroute.evaluate.collect.dataset import LabelledQuestion, read_dataset
from focalroute.evaluate.collect.harness import Imported, import_samples

__all__ = ["Collected", "Imported", "LabelledQuestion", "collect", "import_samples", "read_dataset"]
