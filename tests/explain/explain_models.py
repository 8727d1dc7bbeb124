"""Small models that the tests of explain share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLS, LABELS, NOISE, LENGTH = 0, (1, 2), 20, 12  # tokens: class, two labels, then noise


class Classifier(nn.Module):
    """A transformer encoder over tokens, read out at the first one."""

    def __init__(
        self,
        width: int = 32,
        heads: int = 4,
        layers: int = 2,
        pre_norm: bool = True,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(3 + NOISE, width)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=dropout, batch_first=True, norm_first=pre_norm
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classes = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.embed(input_ids) + self.places[: input_ids.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=attention_mask == 0)
        return self.classes(hidden[:, 0])


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (example, 1 + 12) with one token that bears the label, the labels, and its places."""
    ids = torch.randint(3, 3 + NOISE, (count, 1 + LENGTH), generator=generator)
    ids[:, 0] = CLS
    labels = torch.randint(2, (count,), generator=generator)
    places = torch.randint(1, 1 + LENGTH, (count,), generator=generator)
    ids[torch.arange(count), places] = labels + LABELS[0]
    return ids, labels, places


def trained(steps: int, seed: int = 0, **options: float) -> Classifier:
    """A classifier that also knows what to say when the token is not there: one half."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Classifier(**options)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids, labels, _ = sentences(64, generator)
        seen = torch.rand(ids.shape, generator=generator) < torch.rand(64, 1, generator=generator)
        seen[:, 0] = True
        loss = nn.functional.cross_entropy(model(ids, seen.long()), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def untrained(dtype: torch.dtype = torch.float64, seed: int = 7, **sizes: int) -> Classifier:
    """A classifier with large random weights, so that it depends on every token."""
    torch.manual_seed(seed)
    model = Classifier(**{"width": 8, "heads": 2, **sizes}).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not name.startswith("classes"):
                parameter.mul_(2.0)
    return model


def padded(count: int = 5, seed: int = 1) -> dict[str, Tensor]:
    """Sentences of different lengths, padded at the end."""
    generator = torch.Generator().manual_seed(seed)
    ids, _, _ = sentences(count, generator)
    lengths = 4 + torch.arange(count) * 2 % (LENGTH - 2)
    mask = (torch.arange(LENGTH + 1) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


class Additive(nn.Module):
    """Each token says for itself; the truth is in the table."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Embedding(30, 1)
        self.embed.weight.data = torch.randn(30, 1, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids)[..., 0].sum(1)


def same(output: Tensor) -> Tensor:
    """The target of a model that gives one number."""
    return output
