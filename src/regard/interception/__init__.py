"""Kernels in front of attention operators, switched on for one thread; threads of a block."""

from regard.interception.kernels import OPERATORS, SPELLINGS, Listener, available, listen, unlisten
from regard.interception.threads import Block

__all__ = ["OPERATORS", "SPELLINGS", "Block", "Listener", "available", "listen", "unlisten"]
