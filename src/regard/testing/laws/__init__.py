"""The laws, one file for each kind of promise; importing the package registers all of them.

The most obvious failures come first, the slowest checks last.
"""

# isort: off
from regard.testing.laws import weights, masks, state, training, errors, compile

__all__ = ["compile", "errors", "masks", "state", "training", "weights"]
