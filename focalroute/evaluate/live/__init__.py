"""``focalroute eval --live``: strategies that no log can replay, played on a pool that answers, simulated or real.

What an endpoint says once it is shown another answer is in no log. So every strategy asks for itself here: each
endpoint alone and correcting itself, the fixed route, plurality, focalroute's default, and DER, which is trained
first. A part of the package that puts others together, as the demo does.
"""

__all__: list[str] = []
