"""On the translator that ships: without its aligned source word a target word changes, and it
alone."""

from __future__ import annotations

import torch
from torch import Tensor

import regard
from regard.editing import forbid
from regard.translate import Translation, Translator
from regard.translate.tokens import BEGIN, END

SENTENCES = [
    "A black dog runs along the beach.",
    "A young girl is eating an apple.",
    "Two men are playing football in the park.",
    "The old woman reads a book in the garden.",
    "A small child sleeps on a red chair.",
    "The boy drinks milk in the kitchen.",
    "I saw a white horse yesterday.",
    "My brother bought a new car.",
    "The cat sleeps under the table.",
    "She sings a song for her mother.",
]


def log_probabilities(translator: Translator, translation: Translation) -> Tensor:
    """Of each token, after the tokens of the translation before it, (target, vocabulary)."""
    model, checkpoint = translator.model, translator.checkpoint
    source = torch.tensor([[*checkpoint.source.encode(translation.source), END]])
    inputs = torch.tensor([[BEGIN, *translation.hypothesis.tokens[:-1]]])
    with torch.no_grad():
        encoded = model.encode(source, source != 0)
        return model.logits(model.decode(encoded, inputs).features)[0].log_softmax(-1)


def test_a_word_needs_its_source_word_and_others_do_not() -> None:
    translator = Translator.load()
    aligned, others, deepest = [], [], []
    for text in SENTENCES:
        translation = translator(text)
        source, target = translation.words
        numbers = torch.tensor(target.pieces)  # the end of the sentence is no word
        tokens = torch.tensor(translation.hypothesis.tokens)[: len(numbers)]
        plain = log_probabilities(translator, translation)[: len(numbers)]
        for source_word, target_word in translation.links:
            if [first for first, _ in translation.links].count(source_word) > 1:
                continue
            keys = [i for i, word in enumerate(source.pieces) if word == source_word]
            with regard.edit(translator.model, forbid(keys=keys)):
                changed = log_probabilities(translator, translation)[: len(numbers)]
            fallen = (plain - changed).gather(1, tokens[:, None])[:, 0]
            moved = changed.argmax(-1) != plain.argmax(-1)
            words = numbers.unique().tolist()
            aligned.append(bool(moved[numbers == target_word].any()))
            others += [bool(moved[numbers == w].any()) for w in words if w != target_word]
            falls = {word: float(fallen[numbers == word].sum()) for word in words}
            deepest.append(max(falls, key=falls.__getitem__) == target_word)
    assert len(aligned) >= 70
    assert sum(aligned) / len(aligned) > 0.8  # 62 of 74
    assert sum(others) / len(others) < 0.01  # 2 of 554
    assert sum(deepest) / len(deepest) > 0.95  # 74 of 74
