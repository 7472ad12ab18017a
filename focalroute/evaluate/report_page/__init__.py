"""One self-contained HTML page, and its drawings as PNGs.

`drawings` is what can be drawn, as plain numbers, `sums` what both sources of them compute alike, `plots` draws,
`page` puts it together. What is on a page is said by whoever has it: `focalroute.evaluate` of an evaluation,
`focalroute.evaluate.store_report` of a store.
"""

from __future__ import annotations

__all__: list[str] = []
