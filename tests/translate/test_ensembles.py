"""Several checkpoints as one translator: probabilities and attention are averaged."""

from dataclasses import replace

import pytest
import torch
from text_translators import ENGLISH, FRENCH, checkpoint
from torch import nn

from regard.errors import RegardError, UnavailableError
from regard.translate import Translator, ensemble, save_checkpoint
from regard.translate.alignment import Head
from regard.translate.checks import check_model
from regard.translate.data import Pair
from regard.translate.models.build import build_model
from regard.translate.search import SearchOptions
from regard.translate.tokens import BEGIN
from regard.translate.training import score_pairs
from regard.translate.vocabulary import WordVocabulary


def member(name, seed, **extra):
    """A checkpoint whose weights are of this seed."""
    made = checkpoint(name, **extra)
    torch.manual_seed(seed)
    model = build_model(made.config.model, len(made.source), len(made.target)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.5)
    return replace(made, model=model)


def told(checkpoint, source, target):
    """Log-probabilities of the next tokens, and weights by site."""
    model, mask = checkpoint.model, source > 0
    with torch.no_grad():
        decoded = model.decode(model.encode(source, mask), target, weights=bool(model.sites))
        return model.logits(decoded.features).log_softmax(-1), decoded.weights


SOURCE = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
TARGET = torch.tensor([[BEGIN, 5, 6], [BEGIN, 7, 4]])


@pytest.mark.parametrize("names", [("bahdanau", "luong-general"), ("transformer", "transformer")])
def test_log_probabilities_are_the_mean_of_those_of_each(names):
    members = [member(name, seed) for seed, name in enumerate(names)]
    both = ensemble(members)
    each = [told(one, SOURCE, TARGET) for one in members]
    mean = torch.stack([logs for logs, _ in each]).mean(0)
    logs, weights = told(both, SOURCE, TARGET)
    torch.testing.assert_close(logs, mean.log_softmax(-1))
    sites = [next(iter(seen.values())).mean(1) for _, seen in each]  # one layer: mean of its heads
    torch.testing.assert_close(weights["ensemble"][:, 0], torch.stack(sites).mean(0))


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "none"])
def test_of_equal_models_it_is_that_model(name):
    one = member(name, 3)
    options = {"shortest": 2, "longest": 6, "beam": 3}
    alone = Translator(one).translate(ENGLISH, **options)
    together = Translator(ensemble([one, member(name, 3)])).translate(ENGLISH, **options)
    for (first,), (second,) in zip(alone, together):
        assert (first.text, first.remarks) == (second.text, second.remarks)
        assert first.score == pytest.approx(second.score, abs=1e-4)
        if name != "none":
            torch.testing.assert_close(first.matrix.weights, second.matrix.weights)


def test_steps_equal_the_teacher_forced_pass():
    members = [member("transformer", 0), member("bahdanau", 1), member("none", 2)]
    verdicts = check_model(ensemble(members).model, len(members[0].source))
    assert all(verdict.passed is not False for verdict in verdicts)
    translation = Translator(ensemble(members))("we don't sleep", shortest=2, longest=6)
    tokens = translation.hypothesis.tokens
    source = torch.tensor([[*members[0].source.encode("we don't sleep"), 2]])
    logs, _ = told(ensemble(members), source, torch.tensor([[BEGIN, *tokens[:-1]]]))
    total = logs[0].gather(1, torch.tensor(tokens)[:, None]).sum()
    assert translation.hypothesis.log_probability == pytest.approx(float(total), abs=1e-4)


def test_each_shows_its_own_head_and_other_readings_are_left_out():
    preferred = {"site": "0.cross", "index": 1, "reading": "output"}
    members = [member("bahdanau", 0), member("transformer", 1, head=preferred)]
    both = ensemble([*members, member("transformer", 2)])  # whose reading is "input"
    assert both.model.heads == [Head("cross", 0), Head("0.cross", 1), None]
    assert Translator(both).reading == "output"


def test_files_are_loaded_together_and_scored(tmp_path):
    paths = [tmp_path / f"{seed}.safetensors" for seed in range(2)]
    for seed, path in enumerate(paths):
        save_checkpoint(path, member("bahdanau", seed))
    translator = Translator.load(paths)
    assert translator("I love you.").matrix is not None
    assert [translator.head.name, translator.reading] == ["ensemble:0", "output"]
    pairs = [Pair(source, target, 1) for source, target in zip(ENGLISH, FRENCH)]
    scores = score_pairs(translator.checkpoint, pairs, SearchOptions(), torch.device("cpu"))
    assert 0 <= scores.chrf.value <= 100
    assert (
        Translator.load(paths[:1])("I love you.").text
        == Translator.load(paths[0])("I love you.").text
    )


def test_refusals(tmp_path):
    one = member("bahdanau", 0)
    other = replace(one, target=WordVocabulary.train(FRENCH[:2], size=40))
    with pytest.raises(RegardError, match=r"the target vocabulary of checkpoint 2 \(12 tokens\)"):
        ensemble([one, other])
    with pytest.raises(RegardError, match="1 checkpoints, expected at least 2"):
        ensemble([one])
    with pytest.raises(RegardError, match="0 checkpoints, expected at least 2"):
        Translator.load([])
    with pytest.raises(UnavailableError, match="an ensemble is not saved as one file"):
        save_checkpoint(tmp_path / "both.safetensors", ensemble([one, one]))
    model = ensemble([one, one]).model
    encoded = model.encode(SOURCE, SOURCE > 0)
    with pytest.raises(UnavailableError, match="its models are trained one by one"):
        model.decode(encoded, TARGET, forcing=0.5)
    assert not list(tmp_path.iterdir())


def test_directions_that_differ_are_refused():
    with pytest.raises(RegardError, match="French and French to English, expected one direction"):
        Translator.load(["english-french", "french-english"])
