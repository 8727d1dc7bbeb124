"""Models whose surroundings are looked for, and what really passed through their modules."""

import torch
from torch import nn

import regard
from regard.anatomy.residual_stream import ResidualStream


def stirred(model, dtype=torch.float64):
    """Parameters far from their first values, so that a part left out is seen."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        weight.data.add_(0.3 * noise)
    return model.to(dtype).eval()


def encoder(norm_first, batch_first=True, nested=False, layers=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first, norm_first=norm_first)
    nested = nested and not norm_first and batch_first
    return stirred(nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested))


def watched(model, *args, **kwargs):
    with (
        torch.no_grad(),
        regard.capture(model, values=True) as trace,
        ResidualStream(model) as residual,
    ):
        model(*args, **kwargs)
    return trace, residual


def seen_at(model, place, side, *args, **kwargs):
    """What a module of the model took in or gave, in order."""
    seen = []
    module = model.get_submodule(place)

    def note(_, args, kwargs, output):
        seen.append(output if side == "output" else (*args, *kwargs.values())[0])

    hook = module.register_forward_hook(note, with_kwargs=True)
    with torch.no_grad():
        model(*args, **kwargs)
    hook.remove()
    return seen


def total(found):
    """Σⱼ Tᵢ(xⱼ) + restᵢ, from the tiles."""
    added = torch.zeros_like(found.output)
    for tile in found.tiles(slice(0, found.recipe.shape.queries)):
        added += tile.vectors.sum(1)
    return added + found.rest
