"""Makes one self-contained HTML page, and its drawings as PNGs: ``focalroute report``, ``eval --html``.

`history` reads a store. `store_page` makes the content of a page from it; for an evaluation,
`focalroute.evaluate.eval_page` does. `drawings` computes the numbers of each drawing; `page` draws them and writes the
HTML. `report_command` is the command.
"""
