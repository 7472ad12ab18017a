"""``focalroute report``: a page about a store or an evaluation.

`history` reads a store, `stored` says what its page shows, `updates` what a policy folder's updates did, `command` is
what the command line calls. The page itself is `focalroute.evaluate.report_page`'s, an evaluation's
`focalroute.evaluate.eval_page`'s.
"""

from __future__ import annotations

__all__: list[str] = []
