"""`regard translate` in an empty folder, with small models of random weights."""

import io
import sys

import pytest
import torch

from regard.cli import main
from regard.translate.checkpoint import Checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.tokens import END
from regard.translate.vocabulary import PieceVocabulary, WordVocabulary

ENGLISH = ["I love you.", "the small cat sleeps", "we don't sleep", "you love cats"]
FRENCH = ["Je t'aime.", "le petit chat dort", "nous ne dormons pas", "tu aimes les chats"]


SIZE = 320  # of pieces there are 256 bytes


def checkpoint(name, vocabulary=WordVocabulary):
    source, target = (vocabulary.train(texts * 4, size=SIZE) for texts in (ENGLISH, FRENCH))
    config = Config(model=ModelConfig(name, embedding=12, hidden=12))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build_model(config.model, len(source), len(target)).eval()
    return Checkpoint(config, source, target, model)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("bahdanau", "none", "encoder-qkv", "transformer"):
        save_checkpoint(folder / f"{name}.safetensors", checkpoint(name))
    save_checkpoint(folder / "pieces.safetensors", checkpoint("bahdanau", PieceVocabulary))
    for name in ("bahdanau", "transformer"):
        silent = checkpoint(name)
        silent.model.embeddings.bias.data[END] = 1e4  # it ends before the first word
        save_checkpoint(folder / f"silent-{name}.safetensors", silent)
    return folder


@pytest.fixture
def run(models, tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; gives its code, what it said, and what it complained."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, given=None, model="bahdanau"):
        command = ["regard", "translate", *map(str, arguments)]
        if model:
            command += ["--model", str(models / f"{model}.safetensors")]
        monkeypatch.setattr(sys, "argv", command)
        if given is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call
