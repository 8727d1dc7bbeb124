"""Transformers is told not to look for the hub: every model comes from an installed package.

Also a model whose truth is known, with data, which several tests share.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
from explain_models import Additive


@pytest.fixture(scope="module")
def additive():
    model = Additive()
    ids = torch.randint(0, 30, (40, 12), generator=torch.Generator().manual_seed(5))
    truth = model.embed.weight.detach()[ids, 0]
    return model, ids, truth
