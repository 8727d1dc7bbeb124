"""Guided alignment: one head learns to look where a statistical aligner links."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy_training import toy_table

from regard.errors import RegardError
from regard.translate.alignment import Head
from regard.translate.config import Config, GuidanceConfig
from regard.translate.data import Examples, collate
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.tokens import END
from regard.translate.training import train
from regard.translate.training.guidance import Guidance, guided_head
from regard.translate.translator import Translator

EXAMPLES = Examples([[5, 6, END], [7, END]], [[8, 9, 10, END], [8, END]])
LINKS = [[0, 1, 1, 0, 1, 1], []]  # source 0 with target 1, source 1 with targets 0 and 1


def dense_loss(rows, reading):
    """The loss by its definition: rows (example, target, source)."""
    shift = int(reading == "input")
    taught = [
        (0, 0, [1]),  # (example, target position, source positions)
        (0, 1, [0, 1]),
        (0, 2, [2]),  # without a link: the end of the source
        (1, 0, [1]),
    ]
    return -sum(
        rows[example, target + shift, source].log() / len(sources)
        for example, target, sources in taught
        for source in sources
    )


@pytest.mark.parametrize("reading", ["output", "input"])
def test_the_loss_is_the_cross_entropy_with_the_links(reading):
    torch.manual_seed(0)
    batch = collate(EXAMPLES, [0, 1])
    scores = torch.randn(2, 3, 4, 3).masked_fill(~batch.source_mask[:, None, None], -torch.inf)
    weights = scores.softmax(-1)
    guidance = Guidance(0.5, Head("cross", 1), reading, LINKS)
    expected = 0.5 * dense_loss(weights[:, 1], reading)
    torch.testing.assert_close(guidance.loss(weights, batch), expected)


class LargestTensor(TorchDispatchMode):
    """Counts the elements of the largest tensor that is made, beside views of `weights`."""

    def __init__(self, weights):
        super().__init__()
        self.weights, self.elements = weights, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensor = function(*args, **(kwargs or {}))
        if tensor.untyped_storage().data_ptr() != self.weights.untyped_storage().data_ptr():
            self.elements = max(self.elements, tensor.numel())
        return tensor


def test_the_loss_makes_no_tensor_of_all_targets_and_sources():
    examples = Examples([[5] * 40 + [END]] * 3, [[6] * 50 + [END]] * 3)
    batch = collate(examples, [0, 1, 2])
    weights = torch.full((3, 1, 51, 41), 1 / 41)
    guidance = Guidance(1.0, Head("cross", 0), "input", [[*range(40)]] * 3)
    with LargestTensor(weights) as largest:
        guidance.loss(weights, batch)
    assert 0 < largest.elements <= 3 * 51


def test_only_the_guided_layer_returns_weights():
    model = build_model(ModelConfig("transformer", hidden=8, layers=3), 20, 20).eval()
    batch = collate(EXAMPLES, [0, 1])
    encoded = model.encode(batch.source, batch.source_mask)
    guided = model.decode(encoded, batch.target_in, weights="1.cross").weights
    assert list(guided) == ["1.cross"]
    assert torch.equal(
        guided["1.cross"], model.decode(encoded, batch.target_in, weights=True).weights["1.cross"]
    )


def test_the_head_is_the_aligner_or_the_first_of_the_last_layer_but_one():
    sizes = {"embedding": 8, "hidden": 8}
    aligned = build_model(ModelConfig("luong-general", aligner=True, **sizes), 20, 20)
    assert guided_head(GuidanceConfig(1.0), aligned) == (Head("align", 0), "input")
    assert guided_head(GuidanceConfig(1.0, "cross"), aligned) == (Head("cross", 0), "output")
    transformer = build_model(ModelConfig("transformer", hidden=8, layers=3), 20, 20)
    assert guided_head(GuidanceConfig(1.0), transformer) == (Head("1.cross", 0), "input")
    chosen = GuidanceConfig(1.0, "2.cross:3", "output")
    assert guided_head(chosen, transformer) == (Head("2.cross", 3), "output")
    without = build_model(ModelConfig("none", **sizes), 20, 20)
    with pytest.raises(
        RegardError, match=r"training\.guidance\.weight is 1.0, but the model has no"
    ):
        guided_head(GuidanceConfig(1.0), without)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "luong-general", "embedding": 24, "hidden": 24, "aligner": True},
        {"name": "transformer", "hidden": 24, "layers": 2, "heads": 2, "feed_forward": 48},
    ],
    ids=["aligner", "transformer"],
)
def test_a_guided_head_aligns_and_its_checkpoint_reads_it(model, tmp_path):
    table = toy_table(tmp_path / "data", count=500)
    table["model"] = {**model, "dropout": 0.0}
    table["training"] |= {"epochs": 8, "batch_tokens": 300, "guidance": 0.5}
    run = train(Config.from_table(table), tmp_path / "run")
    for path in (run.folder.best, run.folder.average):
        translator = Translator.load(path)
        assert translator.head == Head("align" if "aligner" in model else "0.cross", 0)
        assert translator.reading == "input"
    matrix = translator("a b c d e", prefix="e d c b a").matrix
    assert matrix.target[:5] == ["e", "d", "c", "b", "a"]
    assert matrix.weights[:5].argmax(-1).tolist() == [4, 3, 2, 1, 0]
