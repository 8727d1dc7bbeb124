"""Transformers is told not to look for the hub: every model comes from an installed package."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
