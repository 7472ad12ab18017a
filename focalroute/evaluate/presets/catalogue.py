"""The presets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from focalroute.core.errors import ConfigError
from focalroute.evaluate.presets.der import der
from focalroute.evaluate.presets.rl_focal import rl_focal
from focalroute.evaluate.replay import Strategy
from focalroute.evaluate.training import Training

#: Name -> how it is made from the training part.
PRESETS: Mapping[str, Callable[[Training], Strategy]] = {"rl-focal": rl_focal, "der": der}


def presets(names: Sequence[str]) -> dict[str, Callable[[Training], Strategy]]:
    """The presets named, as rows of a report: ``preset-rl-focal``, ``preset-der``; one named twice is one row.

    Raises:
        ConfigError: there is no such preset.
    """
    for name in names:
        if name not in PRESETS:
            raise ConfigError(f"preset: there is no {name!r}; give one of {', '.join(PRESETS)}")
    return {f"preset-{name}": PRESETS[name] for name in names}
