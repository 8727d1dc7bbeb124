"""Small translators of random weights that read and say a few words."""

import pytest
import torch

from regard.translate.checkpoint import Checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.translator import Translator
from regard.translate.vocabulary import WordVocabulary

ENGLISH = ["I love you.", "the small cat sleeps", "we don't sleep", "you love cats"]
FRENCH = ["Je t'aime.", "le petit chat dort", "nous ne dormons pas", "tu aimes les chats"]


def checkpoint(name="bahdanau", **extra):
    source = WordVocabulary.train(ENGLISH, size=40)
    target = WordVocabulary.train(FRENCH, size=40)
    torch.manual_seed(0)
    heads = {"heads": 2} if name == "transformer" else {}
    config = Config(model=ModelConfig(name=name, embedding=16, hidden=16, layers=1, **heads))
    model = build_model(config.model, len(source), len(target)).eval()
    return Checkpoint(config, source, target, model, extra)


@pytest.fixture(params=["bahdanau", "transformer"])
def translator(request):
    return Translator(checkpoint(request.param))
