"""How a question is put to one endpoint and its reply is read: `plan` gives a `Plan`, its ``read`` a `Reading`.

`transfer` shows the answer of one endpoint to the next.
"""

from focalroute.endpoints.elicit.plan import Plan, Reading, needs_probe, plan
from focalroute.endpoints.elicit.transfer import transfer

__all__ = ["Plan", "Reading", "needs_probe", "plan", "transfer"]
