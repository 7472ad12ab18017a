"""``python -m focalroute`` is the ``focalroute`` command."""

from focalroute.cli.app import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
