"""Pruning of transformers: without heads a model says what it says with these heads masked.

Families with random weights, a trained model, and every architecture that can be built here.
"""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from head_models import (
    FAMILIES,
    HEADS,
    WIDTH,
    built,
    hidden_loss,
    masked_by_hand,
    near,
    words,
)

import regard
from regard.anatomy.head_sites import head_sites
from regard.errors import RegardError
from regard.heads.importance import head_importance
from regard.heads.prune import prune

# -- families


CHOICES = {
    "one": [1],
    "two": [0, 2],
    "a pair of neighbours": [2, 3],
    "all but one": [0, 1, 3],
    "all": [0, 1, 2, 3],
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_heads_a_model_says_what_it_says_with_them_masked(family, choice):
    model, inputs = built(family), words(family)
    heads = dict.fromkeys(FAMILIES[family][2][1:], CHOICES[choice])
    want = masked_by_hand(model, heads)
    result = prune(model, heads)
    grouped = family == "llama" and choice == "one"  # its neighbour shares keys with it
    assert (result.parameters[1] < result.parameters[0]) != grouped
    assert sum(p.numel() for p in model.parameters()) == result.parameters[1]
    with torch.no_grad():
        near(model(**inputs).last_hidden_state, want(**inputs).last_hidden_state)
    taken = {
        name: sorted(result.removed.get(name, []) + result.masked.get(name, [])) for name in heads
    }
    assert taken == heads == result.heads


@pytest.mark.parametrize("family", FAMILIES)
def test_a_capture_shows_the_heads_that_are_left(family):
    model, inputs = built(family), words(family)
    name = FAMILIES[family][2][-1]
    with torch.no_grad():
        before = {
            r.name: r.weights()
            for r in regard.trace(masked_by_hand(model, {name: [2, 3]}), **inputs)
        }
        result = prune(model, {name: [2, 3]})
        trace = regard.trace(model, **inputs)
    assert result.removed == {name: [2, 3]} and not result.masked
    assert trace[name].shape.heads == 2
    for record in trace:
        want = before[record.name][:, :2] if record.name == name else before[record.name]
        near(record.weights(), want, 1e-6)
    found = head_importance(model, [inputs], hidden_loss)
    assert found[name].shape == (2,)


def test_in_single_precision():
    model, inputs = built("bert", torch.float32), words("bert")
    heads = {0: [1, 3], 1: [0]}
    want = masked_by_hand(
        model, {f"encoder.layer.{i}.attention.self": numbers for i, numbers in heads.items()}
    )
    prune(model, heads)
    with torch.no_grad():
        near(model(**inputs).last_hidden_state, want(**inputs).last_hidden_state, 1e-6)


def test_groups_of_heads_stay_of_one_size():
    """Eight heads, four groups: a group goes whole, or every group loses as many."""
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=24,
    )
    model = hf.LlamaModel(config).double().eval()
    inputs = words("llama")
    name = "layers.0.self_attn"
    for heads, removed, sizes in [
        ([2, 3], [2, 3], (6, 3, 2)),  # one group
        ([0, 2, 5, 6], [0, 2, 5, 6], (4, 4, 1)),  # one of each group
        ([0, 2], [], (8, 4, 2)),  # some groups would be smaller
        ([0, 4, 5], [4, 5], (6, 3, 2)),  # a group, and one head that has to stay
        ([0, 2, 3, 5, 6], [0, 2, 3, 5, 6], (3, 3, 1)),
        (list(range(8)), list(range(1, 8)), (1, 1, 1)),
    ]:
        mine = copy.deepcopy(model)
        want = masked_by_hand(model, {name: heads})
        result = prune(mine, {name: heads})
        assert result.removed.get(name, []) == removed
        assert result.masked.get(name, []) == sorted(set(heads) - set(removed))
        assert (name in result.reasons) == (removed != heads)
        attention = mine.layers[0].self_attn
        got = (
            attention.q_proj.out_features // 4,
            attention.k_proj.out_features // 4,
            attention.num_key_value_groups,
        )
        assert got == sizes
        with torch.no_grad():
            near(mine(**inputs).last_hidden_state, want(**inputs).last_hidden_state, 1e-6)


def test_generation_with_a_cache():
    torch.manual_seed(0)
    _, config, names = FAMILIES["llama"]
    model = hf.LlamaForCausalLM(config()).eval()
    heads = {f"model.{names[0]}": [0, 1], f"model.{names[1]}": [2, 3]}
    want = masked_by_hand(model, heads)
    prune(model, heads)
    given = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(**given, **options), want.generate(**given, **options))


def test_t5_first_layer_makes_the_bias_of_all_and_is_masked():
    model, inputs = built("t5"), words("t5")
    first = "decoder.block.0.layer.0.SelfAttention"
    result = prune(model, {first: [0], "decoder.block.1.layer.0.SelfAttention": [0]})
    assert result.masked == {first: [0]}
    assert "position bias of every layer" in repr(result)
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    with torch.no_grad():
        near(model(**inputs)[0], other(**inputs)[0])


@pytest.mark.parametrize("kind", ["0.SelfAttention", "1.EncDecAttention"])
def test_t5_pruned_again(kind):
    model, inputs = built("t5"), words("t5")
    place = f"decoder.block.1.layer.{kind}"
    want = masked_by_hand(model, {place: [0, 2]})
    prune(model, {place: [2]})
    prune(model, {place: [0]})
    with torch.no_grad():
        near(model(**inputs).last_hidden_state, want(**inputs).last_hidden_state)
        _, bias, _ = model.get_submodule(place)(
            torch.randn(1, 4, WIDTH, dtype=torch.float64),
            position_bias=torch.randn(1, HEADS, 4, 4, dtype=torch.float64),
        )
    assert bias.shape[1] == HEADS, "the next layer gets the bias of all heads"


def test_shared_layers_are_pruned_once():
    torch.manual_seed(0)
    config = hf.AlbertConfig(
        vocab_size=50,
        embedding_size=8,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        intermediate_size=24,
    )
    model = hf.AlbertModel(config, add_pooling_layer=False).double().eval()
    inputs = words("bert")
    found = head_importance(model, [inputs], hidden_loss, calls="shared")
    heads = found.least(2)
    want = masked_by_hand(model, heads)
    assert prune(model, heads).removed == heads
    with torch.no_grad():
        near(model(**inputs).last_hidden_state, want(**inputs).last_hidden_state)
    each = head_importance(model, [inputs], hidden_loss)
    with pytest.raises(RegardError, match=r"#\d' is one call of a module .* calls='shared'"):
        prune(model, each.least(1))


def test_a_model_that_cannot_be_cut_is_masked():
    """Swin has a table of biases by head inside the attention."""
    torch.manual_seed(0)
    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2], num_heads=[4], window_size=4
    )
    model = hf.SwinModel(config).double().eval()
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64)}
    names = [site.name for site in head_sites(model)]
    want = masked_by_hand(model, {names[0]: [1]})
    result = prune(model, {0: [1]})
    assert result.masked == {names[0]: [1]} and not result.removed
    assert "relative_position_bias" in result.reasons[names[0]]
    with torch.no_grad():
        near(model(**inputs).last_hidden_state, want(**inputs).last_hidden_state)


# -- a trained model


PAIRS = [
    ("A man is playing a guitar on stage.", "Someone performs music with a guitar."),
    ("The cat sleeps on the warm windowsill.", "A kitten is napping by the window."),
    ("Stock prices fell sharply on Monday.", "Shares dropped a lot at the start of the week."),
    ("She is cooking dinner for her family.", "A woman prepares a meal at home."),
    ("The train to Paris leaves at noon.", "At twelve the train departs for the French capital."),
    ("Scientists discovered a new species of frog.", "Researchers found an unknown amphibian."),
    ("The children are playing football in the park.", "Kids kick a ball around on the grass."),
    ("It rained heavily all night long.", "There was a downpour until the morning."),
    ("He forgot his keys in the office.", "The man left his keys at work."),
    ("The museum is closed on Tuesdays.", "You cannot visit the gallery on a Tuesday."),
    ("My laptop's battery dies very quickly.", "The computer does not hold a charge for long."),
    ("The doctor advised him to drink more water.", "A physician told him to stay hydrated."),
]


@pytest.fixture(scope="module")
def sentences():
    """MiniLM, sentences with the number of their paraphrase, and the loss of finding it."""
    from regard.cli import packaged

    loaded = packaged.minilm()
    model, tokenizer = loaded.model, loaded.tokenizer

    def embedded(output, inputs):
        there = inputs["attention_mask"][..., None].float()
        mean = (output.last_hidden_state * there).sum(1) / there.sum(1)
        return F.normalize(mean, dim=-1)

    def encoded(texts):
        return dict(tokenizer(texts, return_tensors="pt", padding=True))

    others = encoded([other for _, other in PAIRS])
    with torch.no_grad():
        targets = embedded(model(**others), others)
    data = [
        {"text": encoded([one for one, _ in PAIRS[i : i + 6]]), "match": torch.arange(i, i + 6)}
        for i in (0, 6)
    ]
    run = lambda model, batch: model(**batch["text"])

    def loss(output, batch):
        alike = embedded(output, batch["text"]) @ targets.T / 0.1
        return F.cross_entropy(alike, batch["match"], reduction="none")

    return model, data, loss, run


def ranks(scores: torch.Tensor) -> torch.Tensor:
    return scores.flatten().argsort().argsort().double()


def test_gradient_and_leaving_out_agree_on_a_trained_model(sentences):
    model, data, loss, run = sentences
    slope = head_importance(model, data, loss, run=run)
    lost = head_importance(model, data, loss, "leave_out", run=run)
    assert slope.scores.shape == lost.scores.shape == (6, 12)
    together = torch.stack([ranks(slope.scores), ranks(lost.scores.abs())])
    assert torch.corrcoef(together)[0, 1] > 0.6, "Spearman"


def test_heads_that_matter_least_cost_least(sentences):
    model, data, loss, run = sentences
    found = head_importance(model, data, loss, run=run)
    metric = {}
    for which in ("least", "most"):
        other = copy.deepcopy(model)
        heads = getattr(found, which)(24)
        result = prune(other, heads, metric=loss, data=data, run=run)
        assert not result.masked and sum(map(len, result.removed.values())) == 24
        metric[which] = result.metric
    assert metric["least"][0] == metric["most"][0]
    before, least = metric["least"]
    assert abs(least - before) < 0.25 * before, "a third of the heads, and hardly a difference"
    assert metric["most"][1] > 2 * before


# -- every architecture


def swept(folder: Path, *names: str) -> dict[str, dict]:
    """Results of `head_sweep.py` by architecture."""
    file = folder / "results.json"
    script = Path(__file__).with_name("head_sweep.py")
    command = [sys.executable, str(script), *names, "-j", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return {found["architecture"]: found for found in json.loads(file.read_text())}


def test_a_few_architectures(tmp_path):
    removed = ["clip", "gemma3_text", "gpt_oss", "longt5", "opt", "qwen3"]
    masked = ["bloom", "falcon", "mpnet", "olmo2", "phi3", "xglm"]
    results = swept(tmp_path, *removed, *masked)
    verdicts = {name: found["verdict"] for name, found in results.items()}
    assert verdicts == {**dict.fromkeys(removed, "removed"), **dict.fromkeys(masked, "masked")}


@pytest.mark.slow
def test_every_architecture(tmp_path):
    results = swept(tmp_path)
    wrong = {name for name, found in results.items() if found["verdict"] == "wrong"}
    assert {name: results[name]["reason"] for name in wrong} == {}
    verdicts = [found["verdict"] for found in results.values()]
    assert verdicts.count("removed") >= 340
    assert verdicts.count("masked") <= 150
