"""ONNX files of attention: onnxruntime gives what torch gives, at other lengths too."""

import pytest
import torch
from torch import nn

from regard import masks
from regard.mechanisms import Heads, MultiHead, Rotary, Scoring

pytestmark = pytest.mark.compiled

BUILDS = {
    "grouped": lambda: MultiHead(16, Heads(4, n_groups=2)),
    "everything": lambda: MultiHead(
        *(16, Heads(4, n_groups=2, value_width=3)),
        position=Rotary(),
        window=(4, 4),
        scoring=Scoring(sinks=True),
    ),
}


class Causal(nn.Module):
    """Outputs and weights of a padded batch as plain tensors."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, keep):
        mask = masks.padding(keep)
        attended = self.attention(x, mask=mask, causal=True, weights=True)
        return attended.output, attended.weights


def padded(length):
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[1, 4:] = False
    return torch.randn(2, length, 16), keep


def test_an_exported_program_calls_the_public_operator():
    program = torch.export.export(Causal(BUILDS["grouped"]().eval()), padded(6))
    names = {str(node.target) for node in program.graph.nodes}
    attention = {name for name in names if "scaled_dot_product" in name}
    assert attention == {"aten.scaled_dot_product_attention.default"}


# Torch's own, in its ONNX exporter.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", ["grouped", pytest.param("everything", marks=pytest.mark.slow)])
def test_onnxruntime_gives_the_same(name, tmp_path):
    import onnxruntime

    module, path = Causal(BUILDS[name]().eval()), tmp_path / "attention.onnx"
    length = torch.export.Dim("length", max=64)
    program = torch.export.export(module, padded(6), dynamic_shapes=({1: length}, {1: length}))
    torch.onnx.export(program, f=str(path), verbose=False)
    session = onnxruntime.InferenceSession(path)
    inputs = padded(9)
    names = [node.name for node in session.get_inputs()]
    arrays = session.run(None, {name: x.numpy() for name, x in zip(names, inputs)})
    for array, expected in zip(arrays, module(*inputs)):
        torch.testing.assert_close(torch.from_numpy(array), expected)
