"""The registry, its configuration, tied embeddings, and what each says when it does not fit."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.errors import RegardError, ShapeError
from regard.translate.config import Config
from regard.translate.models.build import BUILDERS, ModelConfig, build_model, names
from regard.translate.models.embeddings import embeddings

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "translate" / "variants.py"
ASKED = (
    "none dot qkv encoder-dot encoder-qkv tutorial bahdanau luong-dot luong-general luong-concat "
    "local-m local-p transformer"
)


def small(name: str = "bahdanau", **more: object) -> ModelConfig:
    sizes = {"embedding": 8 if name == "transformer" else 6, "hidden": 8}
    return ModelConfig(name, **{**sizes, **more})  # type: ignore[arg-type]


def test_every_name_is_there():
    assert set(names()) == set(ASKED.split()) == set(BUILDERS)


def test_the_reference_shape():
    config = Config.from_table({"preset": "reference"})
    sizes = config.vocabulary.source_size, config.vocabulary.target_size
    assert sizes == (9_000, 10_000) and config.vocabulary.kind == "words"
    assert config.data.longest == config.model.longest == 100
    assert (config.model.embedding, config.model.hidden) == (300, 500)
    for name in ("bahdanau", "transformer"):  # a preset that a model refuses would be none
        build_model(replace(config.model, name=name), 9, 9)


def test_two_names_of_one_model():
    assert BUILDERS["dot"] is BUILDERS["luong-dot"]
    others = [builder for name, builder in BUILDERS.items() if name != "dot"]
    assert len(set(others)) == len(others)


def test_the_experiment_trains_it_once_and_prints_both_names(tmp_path, monkeypatch, capsys):
    experiment = runpy.run_path(str(EXPERIMENT))
    trained = []

    def train_all(waiting, workers, arguments):
        for name in waiting:
            trained.append(name)
            result = {column: len(trained) for column in experiment["COLUMNS"]}
            (tmp_path / name).mkdir()
            found = json.dumps({**result, "ended": "finished"})
            (tmp_path / name / "result.json").write_text(found)

    monkeypatch.setitem(experiment["main"].__globals__, "train_all", train_all)
    monkeypatch.setattr("sys.argv", ["variants.py", "--runs", str(tmp_path)])
    for _ in range(2):  # the second time nothing is left to train
        experiment["main"]()
    assert trained == [name for name in names() if name != "luong-dot"]
    rows = dict(
        line.split(" | ", 1) for line in capsys.readouterr().out.splitlines() if " " in line
    )
    assert rows["| dot"] == rows["| luong-dot"] != rows["| qkv"]
    monkeypatch.setattr("sys.argv", ["variants.py", "--only", "dot,luong"])
    with pytest.raises(SystemExit):
        experiment["main"]()
    assert "--only has luong, expected some of none, " in capsys.readouterr().err


def test_only_models_that_look_have_a_site():
    with_none = {name for name in names() if not build_model(small(name), 9, 9).sites}
    assert with_none == {"none", "encoder-dot", "encoder-qkv"}


def test_attention_inside_the_encoder_has_a_name():
    source = torch.tensor([[4, 5, 2]])
    for name in ("encoder-dot", "encoder-qkv"):
        encoded = build_model(small(name), 9, 9).encode(source, source > 0, weights=True)
        assert encoded.weights["encoder"].shape == (1, 1, 3, 3)


@pytest.mark.parametrize("name", ["bahdanau", "luong-general", "none"])
def test_tied_parameters_are_held_once(name):
    tied = build_model(small(name, tie="target"), 9, 11)
    assert tied.embeddings.output is None
    assert tied.logits(torch.randn(2, 6)).shape == (2, 11)
    free = build_model(small(name, tie="all"), 11, 11)
    assert free.embeddings.source is free.embeddings.target
    keys = [key for key in free.state_dict() if key.startswith("embeddings")]
    assert keys == ["embeddings.bias", "embeddings.target.weight"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden": 0}, "model.hidden is 0, expected at least 1"),
        ({"dropout": 1.0}, "model.dropout is 1.0, expected from 0 to below 1"),
        ({"cell": "rnn"}, "model.cell is 'rnn', expected 'gru' or 'lstm'"),
        ({"tie": "some"}, "model.tie is 'some', expected 'none' or 'target' or 'all'"),
        ({"norm": "mid"}, "model.norm is 'mid', expected 'pre' or 'post'"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_setting_that_does_not_fit_is_named(change, text):
    with pytest.raises(RegardError, match=text):
        ModelConfig(**change)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(RegardError, match=r"model\.name is 'badhanau', .*did you mean 'bahdanau'"):
        build_model(small("badhanau"), 9, 9)


#: Other values than the default, and the models that have the setting.
CURRENT = {"dot", "qkv", "luong-dot", "luong-general", "luong-concat", "local-m", "local-p"}
RECURRENT = set(ASKED.split()) - {"transformer"}
HAVE = {
    "cell": ("lstm", RECURRENT),
    "bidirectional": (False, RECURRENT),
    "input_feeding": (True, CURRENT),
    "aligner": (True, CURRENT),
    "heads": (2, {"transformer"}),
    "feed_forward": (9, {"transformer"}),
    "norm": ("post", {"transformer"}),
    "longest": (7, {"tutorial"}),
}


@pytest.mark.parametrize("setting", HAVE)
@pytest.mark.parametrize("name", names())
def test_a_setting_is_honoured_or_refused(name, setting):
    value, have = HAVE[setting]
    config = small(name, **{setting: value})
    if name not in have:
        with pytest.raises(
            RegardError, match=rf"^model\.{setting} is .+ with model\.name '{name}', "
        ):
            build_model(config, 9, 9)
        return
    torch.manual_seed(0)
    plain = build_model(small(name), 9, 9)
    torch.manual_seed(0)
    changed = build_model(config, 9, 9)
    shapes = [{key: one.shape for key, one in m.state_dict().items()} for m in (plain, changed)]
    assert str(plain) != str(changed) or shapes[0] != shapes[1]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            small("transformer", cell="lstm"),
            "model.cell is 'lstm' with model.name 'transformer', expected 'gru', the default: only "
            "recurrent models have cells",
        ),
        (
            small("transformer", reverse_source=True),
            "model.reverse_source is true with model.name 'transformer', expected false, the "
            "default: only recurrent models read in a direction",
        ),
        (
            small("bahdanau", heads=8),
            "model.heads is 8 with model.name 'bahdanau', expected 4, the default: only the "
            "Transformer has a number of heads",
        ),
        (
            small("transformer", embedding=6),
            "model.embedding is 6 with model.name 'transformer', expected 8, as model.hidden: a "
            "Transformer is as wide everywhere",
        ),
    ],
)
def test_what_is_said_of_a_setting_that_a_model_has_not(config, text):
    with pytest.raises(RegardError) as caught:
        build_model(config, 9, 9)
    assert str(caught.value) == text


def test_an_embedding_that_was_not_asked_for_is_as_wide_as_the_transformer():
    model = build_model(ModelConfig("transformer", hidden=8), 9, 9)
    assert model.embeddings.target.embedding_dim == 8


def test_two_directions_have_none_to_reverse():
    with pytest.raises(RegardError, match="has no direction to reverse"):
        build_model(small(reverse_source=True), 9, 9)


def test_one_embedding_for_both_wants_one_vocabulary():
    with pytest.raises(RegardError, match="they have 9 and 11 tokens"):
        build_model(small(tie="all"), 9, 11)
    with pytest.raises(RegardError, match="takes 8 features, expected 6"):
        embeddings(9, 9, 6, features=8, tie="target")
    with pytest.raises(RegardError, match="tie='some', expected 'none', 'target' or 'all'"):
        embeddings(9, 9, 6, features=6, tie="some")


def test_nothing_to_read_or_say_is_refused():
    model = build_model(small(), 9, 9)
    empty = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(ShapeError, match="source has size 0, expected at least 1"):
        model.encode(empty, empty > 0)
    source = torch.tensor([[4, 2]])
    with pytest.raises(ShapeError, match="target has size 0, expected at least 1"):
        model.decode(model.encode(source, source > 0), empty[:1])


def test_additive_weights_are_equal_at_first():
    model = build_model(small(), 9, 9).eval()
    source = torch.tensor([[4, 5, 6, 2], [4, 2, 0, 0]])
    decoded = model.decode(model.encode(source, source > 0), torch.tensor([[1], [1]]), weights=True)
    expected = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    assert torch.equal(decoded.weights["cross"][:, 0, 0], expected)
