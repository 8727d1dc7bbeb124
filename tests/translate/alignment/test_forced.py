"""A model made to say a translation: its weights against one sentence, one step at a time."""

import pytest
import torch

from regard.errors import RegardError, UnavailableError
from regard.translate.alignment import Head, Sentence, force
from regard.translate.models.config import ModelConfig
from regard.translate.models.transformer import build_transformer
from regard.translate.tokens import BEGIN, END
from regard.translate.vocabulary import WordVocabulary

TEXTS = [("the cat sleeps", "le chat dort"), ("a dog", "un chien"), ("yes", "oui , oui , oui !")]


@pytest.fixture(scope="module")
def vocabularies():
    return [WordVocabulary.train(side, size=30) for side in zip(*TEXTS)]


@pytest.fixture(scope="module")
def model(vocabularies):
    sizes = {"hidden": 16, "layers": 2, "heads": 2, "feed_forward": 32}
    config = ModelConfig("transformer", **sizes, dropout=0.3)
    torch.manual_seed(0)
    return build_transformer(config, *map(len, vocabularies)).double()


@pytest.fixture(scope="module")
def sentences(vocabularies):
    return [
        [Sentence.spaced(text, vocabulary) for text in side]
        for vocabulary, side in zip(vocabularies, zip(*TEXTS))
    ]


@pytest.mark.parametrize("batch", [1, 3])
def test_weights_are_those_of_a_step_at_a_time(model, sentences, batch):
    model.train()  # its dropout must not act, and its mode must come back
    found = force(model, *sentences, batch=batch)
    assert model.training and all(module.training for module in model.modules())
    model.eval()
    for source, target, weights in zip(*sentences, found.weights):
        numbers = torch.tensor([[*source.numbers, END]])
        encoded = model.encode(numbers, torch.ones_like(numbers, dtype=torch.bool))
        state = model.start(encoded)
        for row, token in enumerate([BEGIN, *target.numbers]):
            stepped = model.step(encoded, state, torch.tensor([token]), weights=True)
            state = stepped.state
            for site, expected in stepped.weights.items():
                assert (weights[site][:, row] - expected[0]).abs().max() < 1e-6
        assert weights["0.cross"].shape == (2, len(target.numbers) + 1, len(source.numbers) + 1)


def test_every_head_and_every_mean_has_a_matrix_of_words(model, sentences):
    found = force(model, *sentences)
    seen = found.heads("input")
    assert len(seen.heads) == 6 and seen.matrices[2].target == ["oui", ",", "oui", ",", "oui", "!"]
    assert seen.matrices[0].weights.shape == (6, 3, 3)
    mean = seen.of(Head("1.cross", None))[0].weights
    assert torch.allclose(mean, found.weights[0]["1.cross"].mean(0)[1:, :-1])


def test_words_between_spaces_keep_their_pieces(vocabularies):
    sentence = Sentence.spaced("the cat's yes", vocabularies[0])
    assert sentence.words.names == ["the", "cat's", "yes"]
    assert len(sentence.words.pieces) == len(sentence.numbers) == 4
    assert sentence.words.pieces == [0, 1, 1, 2]
    assert Sentence.spaced(" ", vocabularies[0]).numbers == []


def test_empty_sentences_and_none_at_all(model, vocabularies):
    empty = [Sentence.spaced("", one) for one in vocabularies]
    found = force(model, empty[:1], empty[1:])
    assert found.heads().matrices[0].weights.shape == (6, 0, 0)
    assert force(model, [], []).heads().matrices == []


def test_what_cannot_be_aligned_is_refused(model, sentences, monkeypatch):
    with pytest.raises(RegardError, match="there are 3 sources, but 2 targets"):
        force(model, sentences[0], sentences[1][:2])
    with monkeypatch.context() as patched:
        patched.setattr(model, "longest_source", 3, raising=False)
        with pytest.raises(RegardError, match=r"sentence 1: the source has 4 tokens .* at most 3"):
            force(model, *sentences)
    with monkeypatch.context() as patched:
        patched.setattr(model, "sites", {})
        with pytest.raises(UnavailableError, match="the model has no attention from target to"):
            force(model, *sentences)
