"""The `focalroute` command."""
