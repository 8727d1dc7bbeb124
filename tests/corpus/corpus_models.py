"""Small models in float64, and texts for them."""

import hashlib

import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.corpus import Corpus

WORDS = 12


class Reader(nn.Module):
    """Two layers of attention over tokens, with a padding mask; causal or not."""

    def __init__(self, *, causal=False, heads=3, seed=0, layer=None):
        super().__init__()
        layer = layer or Layer
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(WORDS, 12)
            self.layers = nn.ModuleList(layer(heads, causal) for _ in range(2))
        self.double().eval()

    def forward(self, input_ids, attention_mask):
        if bool((input_ids == WORDS - 1).any()):
            raise ValueError("a poisoned token")
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask > 0)
        return hidden


class Layer(nn.Module):
    def __init__(self, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project = nn.Linear(12, 36)
        nn.init.normal_(self.project.weight, std=0.6)

    def forward(self, hidden, real):
        parts = self.projected(hidden, real)
        length = hidden.shape[1]
        allowed = real[:, None, None].expand(-1, -1, length, -1)
        if self.causal:
            allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=allowed)
        mixed = mixed.nan_to_num(0.0)  # rows of padding before the text
        return hidden + mixed.transpose(1, 2).flatten(2)

    def projected(self, hidden, real):
        """Queries, keys and values."""
        return self.project(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)


class Undefined(Layer):
    """Rows of padding are not a number."""

    def projected(self, hidden, real):
        query, key, value = super().projected(hidden, real)
        return torch.where(real[:, None, :, None], query, torch.nan), key, value


def texts(number, seed=0, longest=17):
    """Lists of tokens of many lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (number,), generator=generator).tolist()
    return [torch.randint(0, WORDS - 1, (n,), generator=generator).tolist() for n in lengths]


def documents_of_a_run():
    """Forty texts, no two alike."""
    return [[number // 10, number % 10, *tokens] for number, tokens in enumerate(texts(40))]


def run(folder, model=None, **options):
    """What `killed_run.py` collects, in four shards of ten."""
    corpus = Corpus(documents_of_a_run(), batch_size=4, shard_size=10)
    return regard.collect(model or Reader(), corpus, out=folder, **options)


def digest(collection):
    """A checksum of everything that was collected."""
    state = collection.state
    parts = [repr(state.header()).encode()]
    parts += [tensor.numpy().tobytes() for _, tensor in sorted(state.tensors().items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()
