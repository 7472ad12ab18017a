"""Reports on a store or an evaluation: ``focalroute report``.

`history` reads a store, `store_page` describes it, `updates` describes what a policy folder's updates did, and
`command` is called by the command line.
"""
