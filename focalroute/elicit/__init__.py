"""How a question is put to one endpoint and its reply is read: `plan` gives a `Plan`, its ``read`` a `Reading`."""

from focalroute.elicit.plan import Plan, Reading, needs_probe, plan

__all__ = ["Plan", "Reading", "needs_probe", "plan"]
