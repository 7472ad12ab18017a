"""Where labels stand beside their points: each where it covers least of what is there already, and near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Left, bottom, right, top.
Box = tuple[float, float, float, float]

_GAP = 6.0
_POINT = 9.0
# What is worse: to stand outside, on another label or point, on a line, or a step further away.
_OUTSIDE, _COVERS, _CROSSES, _FURTHER = 1000.0, 30.0, 0.4, 0.5
# How far out, on which side (0: centred), how far up; the nearest first.
_SPOTS = tuple(
    (reach, side, up)
    for reach in (0, 12, 30, 55, 85)
    for up in (0, 11, -11, 22, -22, 36, -36, 52, -52)
    for side in ((1, -1, 0) if abs(up) >= 11 and not reach else (1, -1))
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a label is tied: its left end (side 1), right end (-1) or middle (0); ``far``: a line is to join it."""

    x: float
    y: float
    side: int
    far: bool

    def box(self, width: float, height: float) -> Box:
        """What a label covers there."""
        return _around(self.x + self.side * width / 2, self.y, width, height)


def places(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    *,
    height: float,
    lines: Sequence[Box],
    within: Box,
) -> list[Place]:
    """Place a label beside each point, one after another.

    Args:
        points: where they are; they may not be covered, either.
        widths: of their labels.
        height: of every label.
        lines: what should not be crossed, but may be.
        within: what labels should stay inside.

    >>> places([(50, 50)], [20], height=10, lines=[], within=(0, 0, 100, 100))
    [Place(x=56.0, y=50, side=1, far=False)]
    """
    taken = [_around(x, y, _POINT, _POINT) for x, y in points]
    found = []
    for (x, y), width in zip(points, widths, strict=True):
        spots = [
            Place(x + side * (reach + _GAP), y + up, side, reach > 0 or abs(up) > 12) for reach, side, up in _SPOTS
        ]
        boxes = [spot.box(width, height) for spot in spots]
        costs = [_cost(box, taken, lines, within) + _FURTHER * rank for rank, box in enumerate(boxes)]
        chosen = costs.index(min(costs))
        taken.append(boxes[chosen])
        found.append(spots[chosen])
    return found


def _cost(box: Box, taken: Sequence[Box], lines: Sequence[Box], within: Box) -> float:
    covered, crossed = (sum(_overlap(box, other) for other in others) for others in (taken, lines))
    return _OUTSIDE * (not _inside(box, within)) + _COVERS * covered + _CROSSES * crossed


def _around(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _inside(one: Box, other: Box) -> bool:
    return one[0] >= other[0] and one[1] >= other[1] and one[2] <= other[2] and one[3] <= other[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
