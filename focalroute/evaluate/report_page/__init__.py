"""Makes one self-contained HTML page, and its drawings as PNGs: ``focalroute report``, ``eval --html``.

`drawings` are plain numbers, `page` draws them and puts the page together. Its contents come from
`focalroute.evaluate.eval_page` for an evaluation, and from `store_page` for a store, which `history` reads.
`report_command` is called by the command line.
"""
