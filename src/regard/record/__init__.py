"""Records of attentions that happened, and the trace that holds them in order."""

from regard.record.record import EdgeList, Record
from regard.record.site import Note, OtherSoftmax, Site
from regard.record.store import load_trace
from regard.record.trace import Trace

__all__ = ["EdgeList", "Note", "OtherSoftmax", "Record", "Site", "Trace", "load_trace"]
