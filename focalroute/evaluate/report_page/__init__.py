"""Makes one self-contained HTML page, and its drawings as PNGs.

`drawings` are plain numbers, `plots` draws them, `page` puts the page together. Its contents come from
`focalroute.evaluate.eval_page` for an evaluation, and from `focalroute.evaluate.store_report` for a store.
"""
