"""Learning: from answers and their feedback to the next policy.

The networks live here as plain numpy (`nets`), start from hand-set weights (`cold`) and leave as ONNX (`export`),
which is all that serving ever sees.
"""

from __future__ import annotations

__all__: list[str] = []
