"""Makes one self-contained HTML page, and its drawings as PNGs: ``focalroute report``, ``eval --html``.

`drawings` holds drawings as plain numbers, and `page` draws them and makes the page. `focalroute.evaluate.eval_page`
gives the content for an evaluation, `store_page` for a store, which `history` reads. The command line calls
`report_command`.
"""
