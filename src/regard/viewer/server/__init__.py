"""A small server: the page, models named at start, saved traces. Needs `regard[viewer]`."""

from regard.viewer.server.limits import Limits
from regard.viewer.server.run import serve
from regard.viewer.server.served import Begun, Draft, Served, Step

__all__ = ["Begun", "Draft", "Limits", "Served", "Step", "serve"]
