"""MiniLM on real sentences: what makes a sentence near to its paraphrase."""

import pytest
import torch

from regard import explain
from regard.cli import packaged
from regard.explain.tasks.task import tasks_of

PAIRS = [
    ("A fox slipped through the fence and carried off three hens at night.",
     "Some chickens were stolen by a wild animal after dark."),
    ("The engineers repaired the broken bridge in less than two weeks.",
     "Fixing the damaged crossing took the builders only a few days."),
    ("Two children were feeding bread to the ducks beside the frozen pond.",
     "Near an icy pond, kids gave the ducks something to eat."),
    ("The judge asked the witness to repeat what she had seen that night.",
     "In court, a woman was told to describe the events again."),
    ("Doctors found that the medicine lowered blood pressure in most patients.",
     "According to physicians, the drug helps against hypertension."),
    ("The river flooded the lower fields twice in the spring of that year.",
     "High water stood on the meadows more than once."),
    ("Astronomers discovered a small planet circling a distant red star.",
     "A new world was found in orbit around a faraway sun."),
    ("The recipe needs two eggs, a cup of sugar and some ripe lemons.",
     "For the cake take citrus fruit, something sweet and eggs."),
    ("Thousands of birds cross the strait every autumn on their way to Africa.",
     "Flocks migrate south over the sea before winter."),
    ("Workers found Roman coins while digging the new underground station.",
     "Ancient money came to light during construction of the metro."),
    ("The old lighthouse keeper rowed back before the storm reached the bay.",
     "Ahead of bad weather, the man of the lighthouse returned in his boat."),
    ("Prices of wheat rose sharply after the dry summer in the south.",
     "A drought made grain more expensive."),
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded():
    with packaged.quietly():
        return packaged.minilm()


@pytest.fixture(scope="module")
def embed(loaded):
    def pooled(**inputs):
        hidden = loaded.model(**inputs).last_hidden_state
        real = inputs["attention_mask"][..., None]
        return (hidden * real).sum(1) / real.sum(1)

    return pooled


@pytest.fixture(scope="module")
def study(loaded, embed):
    """Sentences, and the similarity to their paraphrases."""
    sentences, paraphrases = (
        dict(loaded.tokenizer(list(texts), return_tensors="pt", padding=True))
        for texts in zip(*PAIRS)
    )
    with torch.no_grad():
        return sentences, explain.Similarity(embed(**paraphrases))


def test_class_and_separator_stay(loaded, embed, study):
    data, target = study
    task = explain.Task(embed, data, target, special=loaded.tokenizer)
    ids = data["input_ids"]
    free = (data["attention_mask"] == 1) & (ids != 101) & (ids != 102)
    assert torch.equal(task.removable, free)
    assert task.embedding is loaded.model.embeddings.word_embeddings
    assert (task.original > 0.3).all() and (task.original < 0.9).all()


def test_removing_words_is_what_it_says(loaded, embed, study):
    data, target = study
    task = explain.Task(embed, data, target, special=loaded.tokenizer)
    removed = torch.zeros_like(task.removable)
    removed[:, 3:6] = True
    mask = data["attention_mask"] * ~removed
    table = loaded.model.get_input_embeddings().weight.detach()
    held = table[data["input_ids"]]
    held[removed] = table[data["input_ids"][task.removable]].mean(0)
    plain = {name: value for name, value in data.items() if name != "input_ids"}
    with torch.no_grad():
        unattended = embed(**{**data, "attention_mask": mask})
        mean = embed(inputs_embeds=held, **plain)
    for way, want in ((explain.AttentionMask(), unattended), (explain.MeanEmbedding(), mean)):
        cosine = torch.cosine_similarity(want, target.to)
        got = task.scores(removed, way)
        torch.testing.assert_close(got, cosine.double(), rtol=0, atol=1e-5)


def test_relevance_is_faithful_and_rollout_is_not_told_from_random(loaded, embed, study):
    """As in the study of the documentation, which has more sentences."""
    data, target = study
    result = explain.recommend(
        embed, data, target, special=loaded.tokenizer, show=False, steps=4, seeds=3
    )
    assert not result.unavailable.keys() - {"received attention"}
    assert result.beats_random("relevance") and result.beats_random("relevance", "sufficiency")
    assert not result.beats_random("rollout")
    assert result.best() in ("relevance", "ALTI")


def test_own_embedding_as_target_has_a_gradient(loaded, embed, study):
    data, _ = study
    task = explain.Task(embed, data, explain.Similarity(), special=loaded.tokenizer)
    torch.testing.assert_close(task.original, torch.ones(len(PAIRS)).double())
    norms = explain.gradient_norm(task)
    assert (norms[task.removable] > 1e-4).all()


def test_the_mean_over_tasks_is_that_of_all_sentences(loaded, embed, study):
    data, _ = study
    whole, *_ = tasks_of(embed, data, explain.Similarity(), special=loaded.tokenizer)
    parts = tasks_of(embed, data, explain.Similarity(), special=loaded.tokenizer, batch_size=3)
    for part in parts:
        torch.testing.assert_close(part.inputs.mean, whole.inputs.mean)
