"""Records of mixed attentions: what can be asked of signed weights, drawn, shown and saved."""

import pytest
import torch
from record_examples import record

import regard
from regard.errors import UnavailableError
from regard.mechanisms import Differential, Heads, MultiHead, Shaped, TalkingHeads
from regard.plots.of_trace import heatmap
from regard.recipe import Mixture
from regard.record import Trace

torch.manual_seed(0)
MODULES = {
    "differential": MultiHead(
        16, Heads(4, head_width=2, value_width=4), mixture=Differential(2, layer=2)
    ),
    "talking heads": MultiHead(16, 4, mixture=TalkingHeads(4)),
    "shaped": Shaped(16, 4),
}
for _module in MODULES.values():
    for _parameter in _module.parameters():
        _parameter.data.add_(0.3 * torch.randn_like(_parameter))
every_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


def attended(module, **options):
    torch.manual_seed(1)
    with torch.no_grad():
        return module(torch.randn(2, 6, 16), causal=True, weights=True, **options)


def trace(module):
    return Trace([record("layer", attended(module).recipe, attends="self")])


@every_module
def test_answers_are_those_of_the_weights(module):
    weights, found = attended(module).weights, trace(module)
    torch.testing.assert_close(found[0].weights(), weights)
    mean, received = found.reduce(regard.HeadMean(), regard.ReceivedAttention())["layer"]
    torch.testing.assert_close(mean, weights.mean(1))
    torch.testing.assert_close(received, weights.sum(2))
    torch.testing.assert_close(found.heads([2, 0])[0].weights(), weights[:, [2, 0]])


@every_module
def test_what_needs_shares_or_logarithms_says_why_not(module):
    found = trace(module)
    for question in (
        lambda: found.reduce(regard.Entropy()),
        lambda: attended(module, reduce=[regard.TopK(1)]),
        found.report,
        lambda: regard.rollout(found),
    ):
        with pytest.raises(UnavailableError, match=r"signed weights (are no shares|have no log)"):
            question()


@every_module
def test_it_is_drawn_shown_and_saved(module, tmp_path):
    found = trace(module)
    weights = found[0].weights()
    spec = heatmap(found)
    torch.testing.assert_close(torch.as_tensor(spec.values), weights[0].mean(0))
    page = found.save(tmp_path / "page.html").read_text()
    assert '"kind":"signed"' in page.replace(" ", "")
    again = regard.load_trace(found.save(tmp_path / "trace.safetensors"))[0]
    assert type(again.recipe) is Mixture
    torch.testing.assert_close(again.weights(), weights)
    torch.testing.assert_close(again.mixed(), found[0].mixed())
