"""Collections that several tests of the report draw; each is made once, when asked."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.cli.packaged import minilm
from regard.corpus import Agreement, Corpus, Figures, Sharpness, StrongestPairs
from regard.viewer.corpus_report import CorpusRun

TEXTS = [
    "The animal did not cross the street because it was too tired.",
    "Rules grew, and dictionaries grew, and translations stayed poor.",
    "A girl hops across the river, from rock to rock.",
    "It's a well-known fact: bribes & <script>alert(1)</script> do not mix!",
    "Two women read the same book in the same room.",
    "Seven of 12 apples were red, 5 were green.",
    "The counts did better than the rules.",
    "Attention let them look back at the sentence while they wrote.",
]
MORE = [
    "He said that she said that he said so.",
    "Rain, rain, rain: the whole week was wet.",
    "A dog sleeps beside a dog that does not sleep.",
    "Nobody knew why the bell rang at three.",
]


@functools.cache
def sentences(second=False):
    """MiniLM over some sentences; the second run reads others too."""
    model = minilm()
    texts = TEXTS + MORE if second else TEXTS
    return regard.collect(model.model, texts, tokenizer=model.tokenizer, show_progress=False)


@functools.cache
def run(second=False):
    """A run without its model."""
    name = "second" if second else "first"
    return CorpusRun(sentences(second), name, "MiniLM", "minilm")


def unseen_run():
    """A run with statistics that the page has no picture for."""
    model = minilm()
    statistics = [Sharpness(), Agreement(), regard.Histogram(bins=4)]
    collection = regard.collect(
        model.model, TEXTS[:3], statistics, tokenizer=model.tokenizer, show_progress=False
    )
    return CorpusRun(collection, "unseen")


@functools.cache
def many_heads(seed=0):
    """64 layers of 64 heads over a few short texts."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, 50, (9 + n,), generator=generator).tolist() for n in range(6)]
    corpus = Corpus(texts, batch_size=6)
    statistics = [Figures(), Sharpness(), StrongestPairs(2)]
    return regard.collect(_Many(), corpus, statistics, show_progress=False)


class _Many(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding = nn.Embedding(50, 128)
            self.layers = nn.ModuleList(nn.Linear(128, 384) for _ in range(64))
            for layer in self.layers:
                nn.init.normal_(layer.weight, std=0.25)
        self.eval()

    def forward(self, input_ids, attention_mask):
        hidden = self.embedding(input_ids)
        mask = (attention_mask > 0)[:, None, None]
        for layer in self.layers:
            parts = layer(F.layer_norm(hidden, (128,))).unflatten(-1, (3, 64, 2))
            mixed = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), attn_mask=mask)
            hidden = hidden + mixed.transpose(1, 2).flatten(2)
        return hidden
