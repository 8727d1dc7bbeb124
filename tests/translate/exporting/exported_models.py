"""Small Transformers of random weights that never say padding or the beginning, as trained ones."""

import torch

from regard.translate.checkpoint import Checkpoint
from regard.translate.config import Config
from regard.translate.data import padded
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.search import SearchOptions, beam_search
from regard.translate.tokens import BEGIN, END, PAD
from regard.translate.vocabulary import PieceVocabulary

ENGLISH = ["I love you.", "the small cat sleeps", "we don't sleep", "you love cats"]
FRENCH = ["Je t'aime.", "le petit chat dort", "nous ne dormons pas", "tu aimes les chats"]
LONGEST = 15


def checkpoint(norm="post", tie="none", kind=PieceVocabulary, name="transformer", **options):
    joint = tie == "all"
    source = kind.train((ENGLISH + FRENCH if joint else ENGLISH) * 4, size=330, **options)
    target = source if joint else kind.train(FRENCH * 4, size=330, **options)
    sizes = {"heads": 4, "feed_forward": 24, "norm": norm} if name == "transformer" else {}
    config = Config(model=ModelConfig(name, hidden=16, layers=2, tie=tie, **sizes))
    torch.manual_seed(0)
    model = build_model(config.model, len(source), len(target)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() == 2:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)
            else:
                parameter.add_(0.1 * noise)
        model.embeddings.bias[[PAD, BEGIN]] = -30.0
        model.embeddings.bias[END] = 2.0  # some end, some reach the limit
    return Checkpoint(config, source, target, model)


def sources(checkpoint):
    return padded([[*checkpoint.source.encode(text), END] for text in ENGLISH])


def searched(checkpoint, beam):
    """All hypotheses of every sentence, ranked by probability alone."""
    options = SearchOptions(beam=beam, longest=LONGEST, length_penalty=0.0)
    return beam_search(checkpoint.model, *sources(checkpoint), options, n_best=beam)
