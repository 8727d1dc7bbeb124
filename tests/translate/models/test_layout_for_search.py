"""Weights laid out for search: the same model, the same files."""

import pytest
import torch
from torch import nn

from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import build_model, names
from regard.translate.models.layout import lay_out_for_search
from regard.translate.translator import Translator
from regard.translate.vocabulary import WordVocabulary

WORDS = WordVocabulary.train(["the cat sat on the mat", "a dog ran over the hill"], size=30)
SOURCE = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
TARGET = torch.tensor([[1, 5, 6], [1, 7, 2]])


def made(name: str, **more: object) -> Checkpoint:
    sizes = {"embedding": 16, "hidden": 16}
    config = Config.from_table({"model": {"name": name, **sizes, **more}})
    torch.manual_seed(0)
    return Checkpoint(
        config, WORDS, WORDS, build_model(config.model, len(WORDS), len(WORDS)).eval()
    )


def logits(model: nn.Module) -> torch.Tensor:
    found: torch.Tensor = model(SOURCE, SOURCE > 0, TARGET, TARGET > 0)
    return found


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("tie", ["none", "all"])
def test_values_gradients_and_files_are_the_same(tmp_path, name, tie):
    checkpoint = made(name, tie=tie, layers=1)
    model = checkpoint.model
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    expected = logits(model)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    lay_out_for_search(model)
    assert any(not p.is_contiguous() for p in model.parameters())
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key])
    found = logits(model)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    for one, other in zip((p.grad for p in model.parameters() if p.grad is not None), gradients):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    save_checkpoint(tmp_path / "turned.safetensors", checkpoint)
    again = load_checkpoint(tmp_path / "turned.safetensors").model.state_dict()
    assert all(torch.equal(again[key], tensor) for key, tensor in before.items())


def test_a_translator_has_its_weights_turned(tmp_path):
    checkpoint = made("transformer")
    save_checkpoint(tmp_path / "a.safetensors", checkpoint)
    loaded = Translator.load(tmp_path / "a.safetensors")
    assert loaded.model.embeddings.output.t().is_contiguous()
    said = loaded("the dog sat", longest=6, shortest=3)
    expected = Translator(checkpoint)("the dog sat", longest=6, shortest=3)
    assert said.hypothesis.tokens == expected.hypothesis.tokens
    torch.testing.assert_close(said.matrix.weights, expected.matrix.weights)
