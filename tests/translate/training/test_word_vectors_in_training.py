"""Vectors of a file in the embeddings of a model that is trained, whatever is tied to what."""

import re
import struct

import pytest
import torch
from toy_training import toy

from regard.errors import RegardError, ShapeError
from regard.translate.config import Config
from regard.translate.training import Watcher, train
from regard.translate.training.resuming import load_state

WIDTH = 16
STILL = "training.optimiser.rate=1e-30"


class Notes(Watcher):
    def __init__(self):
        self.text = ""

    def note(self, text):
        self.text += text + "\n"


def vectors_of(letters, start):
    return {
        letter: [start + place + n / 8 for n in range(WIDTH)]
        for place, letter in enumerate(letters)
    }


def text_of(vectors):
    return "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in vectors.items())


def glove(path, vectors):
    path.write_text(text_of(vectors))


def word2vec_text(path, vectors):
    path.write_text(f"{len(vectors)} {WIDTH}\n" + text_of(vectors))


def word2vec_binary(path, vectors):
    rows = (f"{word} ".encode() + struct.pack(f"<{WIDTH}f", *row) for word, row in vectors.items())
    path.write_bytes(f"{len(vectors)} {WIDTH}\n".encode() + b"".join(rows))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "vectors"
    glove(path, vectors_of("abcde", 1.0))
    return path


def rows_of(state, side, vectors):
    """The rows that the words of a file have in a saved run."""
    vocabulary = getattr(state.vocabularies, side)
    name = (
        "own_source"
        if side == "source" and "embeddings.own_source.weight" in state.weights
        else "target"
    )
    weight = state.weights[f"embeddings.{name}.weight"]
    return torch.stack([weight[vocabulary.encode(word)[0]] for word in vectors])


def run(tmp_path, *settings, notes=None, **options):
    config = toy(tmp_path / "data", "training.steps=2", *settings)
    train(config, tmp_path / "run", watcher=notes, **options)
    return load_state(tmp_path / "run" / "last.safetensors")


@pytest.mark.parametrize("write", [glove, word2vec_text, word2vec_binary])
def test_each_form_comes_into_the_embedding_it_is_for(tmp_path, write):
    source, target = vectors_of("abcde", 1.0), vectors_of("efghij" + "z", -20.0)
    write(tmp_path / "source", source)
    write(tmp_path / "target", target)
    notes = Notes()
    settings = (f"vectors.source={tmp_path / 'source'}", f"vectors.target={tmp_path / 'target'}")
    state = run(tmp_path, *settings, STILL, notes=notes)
    del target["z"]  # a word that the vocabulary has not
    for side, vectors in (("source", source), ("target", target)):
        expected = torch.tensor(list(vectors.values()))
        torch.testing.assert_close(rows_of(state, side, vectors), expected)
    assert re.search(
        r"source: 5 of 10 words have a vector \(50\.0%\), 0 of them in lower", notes.text
    )
    assert re.search(
        r"target: 6 of 10 words have a vector \(60\.0%\), 0 of them in lower", notes.text
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_vectors_stay_and_others_learn(tmp_path, file, frozen):
    state = run(tmp_path, f"vectors.source={file}", f"vectors.frozen={str(frozen).lower()}")
    moved = rows_of(state, "source", "abcde") - torch.tensor(
        list(vectors_of("abcde", 1.0).values())
    )
    assert bool(moved.abs().max() == 0) == frozen
    assert state.weights["embeddings.target.weight"].abs().max() < 3


def test_a_resumed_run_does_not_read_them_again_and_keeps_them_frozen(tmp_path, file):
    settings = (f"vectors.source={file}", "vectors.frozen=true")
    before = run(tmp_path, *settings)
    file.unlink()
    notes = Notes()
    after = run(tmp_path, *settings, "training.steps=4", resume=True, notes=notes)
    assert "have a vector" not in notes.text and after.position.step == 4
    key = "embeddings.own_source.weight"
    assert torch.equal(before.weights[key], after.weights[key])
    assert not torch.equal(
        before.weights["embeddings.target.weight"], after.weights["embeddings.target.weight"]
    )
    with pytest.raises(RegardError, match=r"began with VectorsConfig\(source='.*frozen=True\) and"):
        run(tmp_path, settings[0], resume=True)


@pytest.mark.parametrize("tie", ["target", "all"])
def test_tied_embeddings_have_them_in_the_output_layer(tmp_path, tie):
    """With "all" there is one embedding: where both files have a word, the target's stays."""
    source, target = vectors_of("abcde", 1.0), vectors_of("defgh", -20.0)
    glove(tmp_path / "source", source)
    glove(tmp_path / "target", target)
    state = run(
        tmp_path, f"vectors.source={tmp_path / 'source'}", f"vectors.target={tmp_path / 'target'}",
        f"model.tie={tie}", "vocabulary.joint=true", "vectors.frozen=true",
    )  # fmt: skip
    assert "embeddings.output" not in state.weights
    torch.testing.assert_close(
        rows_of(state, "target", target), torch.tensor(list(target.values()))
    )
    expected = source | ({word: target[word] for word in "de"} if tie == "all" else {})
    torch.testing.assert_close(
        rows_of(state, "source", source), torch.tensor(list(expected.values()))
    )


def test_wrong_vectors_are_named_and_nothing_is_written(tmp_path, file):
    with pytest.raises(
        ShapeError,
        match=r"vectors\.source: .*vectors: vectors of 16 numbers, but the embedding has 8; "
        r"model\.embedding \(a Transformer's model\.hidden\) says",
    ):
        run(tmp_path, f"vectors.source={file}", "model.embedding=8")
    with pytest.raises(RegardError, match="missing"):
        run(tmp_path, f"vectors.source={tmp_path / 'missing'}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            ["vectors.source=v.txt", "vocabulary.kind=pieces"],
            r"vectors\.source is v\.txt, but vocabulary\.kind is 'pieces': word vectors are for",
        ),
        (["vectors.frozen=true"], r"vectors\.frozen needs vectors\.source or vectors\.target"),
    ],
)
def test_settings_that_do_not_go_together(settings, wanted):
    with pytest.raises(RegardError, match=wanted):
        Config.from_table({}, settings)


def test_the_path_is_relative_to_the_file(tmp_path):
    (tmp_path / "c.toml").write_text('[vectors]\ntarget = "v.txt"\n')
    assert Config.from_file(tmp_path / "c.toml").vectors.target == str(tmp_path / "v.txt")
