"""An evaluation as one self-contained HTML page: `numbers` computes, `_plots` draws, `page` puts it together."""

from __future__ import annotations

__all__: list[str] = []
