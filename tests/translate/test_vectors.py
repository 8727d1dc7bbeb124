"""Word vectors from files, against plain writers and readers of the forms."""

import gzip
import struct

import pytest
import torch
from torch import nn

from regard.errors import RegardError, ShapeError
from regard.translate.vectors import VectorReport, load_vectors, read_vectors
from regard.translate.vocabulary import WordVocabulary

WORDS = ["the", ",", "paris", "Paris", "thé", "3", ". .", "n't"]


def numbers_of(words, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {word: torch.randn(width, generator=generator).tolist() for word in words}


def glove(vectors):
    rows = (f"{word} {' '.join(map(repr, row))}\n" for word, row in vectors.items())
    return "".join(rows).encode()


def word2vec_text(vectors):
    width = len(next(iter(vectors.values())))
    rows = (f"{word} {' '.join(map(repr, row))} \n" for word, row in vectors.items())
    return f"{len(vectors)} {width}\n".encode() + "".join(rows).encode()


def word2vec_binary(vectors, end=b"\n"):
    """As word2vec.c writes it; others leave the line end out."""
    width = len(next(iter(vectors.values())))
    made = f"{len(vectors)} {width}\n".encode()
    for word, row in vectors.items():
        made += word.replace(" ", "_").encode() + b" " + struct.pack(f"<{width}f", *row) + end
    return made


FORMS = {
    "glove": glove,
    "word2vec text": word2vec_text,
    "word2vec binary": word2vec_binary,
    "word2vec binary without line ends": lambda vectors: word2vec_binary(vectors, b""),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("width", [1, 2, 7, 50])
@pytest.mark.parametrize("form", FORMS)
def test_what_was_written_is_read(tmp_path, form, width, packed):
    expected = numbers_of([word for word in WORDS if form != "glove" or word != "3"], width)
    data = FORMS[form](expected)
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(data) if packed else data)
    words, matrix = read_vectors(path)
    assert matrix.shape == (len(expected), width)
    names = [word.replace(" ", "_") if "binary" in form else word for word in expected]
    assert list(words) == names
    for name, row in zip(names, expected.values()):
        assert torch.equal(matrix[words[name]], torch.tensor(row))


@pytest.mark.parametrize("form", FORMS)
def test_some_words_of_many(tmp_path, form):
    expected = numbers_of([f"w{number}" for number in range(9000)], 40)  # more than one chunk
    (tmp_path / "v").write_bytes(FORMS[form](expected))
    wanted = {"w0", "w17", "w8999", "none"}
    words, matrix = read_vectors(tmp_path / "v", wanted)
    assert set(words) == wanted - {"none"}
    for word, row in words.items():
        assert torch.equal(matrix[row], torch.tensor(expected[word]))
    assert read_vectors(tmp_path / "v", {"none"}).matrix.shape == (0, 40)


@pytest.mark.parametrize("seed", range(20))
def test_binary_is_not_taken_for_text(tmp_path, seed):
    """Whatever the numbers: small ones, zeros, bytes that look like line ends."""
    rows = numbers_of(["the", "a"], 8, seed)
    rows["the"][:3] = [0.0, 1.0, struct.unpack("<f", b"\n\n\n\n")[0]]
    (tmp_path / "v").write_bytes(word2vec_binary(rows))
    words, matrix = read_vectors(tmp_path / "v")
    assert torch.equal(matrix, torch.tensor([rows[word] for word in words]))


@pytest.mark.parametrize("form", FORMS)
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, form):
    expected = numbers_of(["the", "a"], 3)
    (tmp_path / "v").write_bytes(b"\xef\xbb\xbf" + FORMS[form](expected))
    words, matrix = read_vectors(tmp_path / "v")
    assert list(words) == ["the", "a"]
    assert torch.equal(matrix, torch.tensor(list(expected.values())))


def test_of_two_vectors_the_first(tmp_path):
    (tmp_path / "v").write_text("a 1 2\nb 3 4\na 5 6\n")
    words, matrix = read_vectors(tmp_path / "v")
    assert words == {"a": 0, "b": 1}
    assert matrix.tolist() == [[1, 2], [3, 4]]


@pytest.fixture
def vocabulary():
    return WordVocabulary(["The", "the", "Paris", "paris", "unheard", "LOUD"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("frozen", [False, True])
def test_into_an_embedding(tmp_path, vocabulary, frozen, dtype):
    vectors = numbers_of(["the", "Paris", "paris", "loud"], 5)
    (tmp_path / "v.txt").write_bytes(glove(vectors))
    embedding = nn.Embedding(len(vocabulary), 5, padding_idx=0, dtype=dtype)
    before = embedding.weight.detach().clone()
    report = load_vectors(tmp_path / "v.txt", vocabulary, embedding, frozen=frozen)
    assert report == VectorReport(str(tmp_path / "v.txt"), words=6, found=3, lowered=2)
    for word, source in {
        "The": "the", "the": "the", "Paris": "Paris", "paris": "paris", "LOUD": "loud",
    }.items():  # fmt: skip
        row = embedding.weight[vocabulary.encode(word)[0]]
        assert torch.equal(row, torch.tensor(vectors[source]).to(dtype))
    kept = [0, 1, 2, 3, *vocabulary.encode("unheard")]
    assert torch.equal(embedding.weight[kept], before[kept])
    assert embedding.weight.requires_grad is not frozen
    assert embedding.weight.grad_fn is None


def test_the_report_can_be_read():
    assert str(VectorReport("v.txt", 2000, 1500, 300)) == (
        "v.txt: 1,800 of 2,000 words have a vector (90.0%), 300 of them in lower case only"
    )
    assert VectorReport("v.txt", 0, 0, 0).share == 0


def test_a_frozen_embedding_can_thaw(tmp_path, vocabulary):
    (tmp_path / "v").write_text("the 1 2\n")
    embedding = nn.Embedding(len(vocabulary), 2)
    load_vectors(tmp_path / "v", vocabulary, embedding, frozen=True)
    load_vectors(tmp_path / "v", vocabulary, embedding)
    assert embedding.weight.requires_grad


BINARY = word2vec_binary({"the": [0.5] * 4, "a": [0.25] * 4})
BROKEN = [
    (b"the 1 2 3\na 1 2\n", ":2: 'a 1 2' has 2 numbers, expected a word and 3"),
    (b"the 1 2 3\n1 2 3\n", ":2: '1 2 3' has 2 numbers, expected a word and 3"),
    (b"the 1 2 3\n\n", ":2: '' has 0 numbers, expected a word and 3"),
    (b"the 1 2 3\na 1 x 3\n", ":2: 'x' is no number"),
    (b"the 1 2 3\na 1 1_0 3\n", ":2: '1_0' is no number"),
    ("the 1 2 3\na 1 ٣ 3\n".encode(), ":2: '٣' is no number"),
    (b"the 1 2 3\na 1 nan 3\n", ":2: numbers that are not finite"),
    (
        b"the 1 2 3\na\xff 1 2 3\n",
        ":2: byte 2 of the line is 0xff, which is no UTF-8 (invalid start byte); convert the file: "
        "iconv -f WINDOWS-1252 -t UTF-8, or leave such bytes out: iconv -c -f UTF-8 -t UTF-8",
    ),
    (b"the\n", ":1: b'the\\n', expected a word and its numbers"),
    (b"", ":1: b'', expected a word and its numbers"),
    (b"2 3\nthe 1 2 3\n", ":1: says 2 words, but there are 1"),
    (b"1 3\nthe 1 2 3\na 1 2 3\n", ":1: says 1 words, but there are 2"),
    (b"2 3\nthe 1 2 3\na 1 2 3 4 5\n", ":3: 'a 1 2 3 4 5' has 5 numbers, expected a word and 3"),
    (b"1 3\nthe 1 2\n", ":2: 'the 1 2' has 2 numbers, expected a word and 3"),
    (b"1 0\nthe\n", ":1: vectors of 0 numbers, expected at least 1"),
    (
        BINARY[:-5],
        ": word 2 of 2, which begins at byte 24, is cut off; expected a word, a space and 4 "
        "numbers of 4 bytes",
    ),
    (
        BINARY[:26],
        ": word 2 of 2, which begins at byte 24, is cut off; expected a word, a space and 4 "
        "numbers of 4 bytes",
    ),
    (BINARY + b"more", ": its first line says 2 words, but it goes on after them, at byte 43"),
    (
        word2vec_binary({"the": [0.0, float("inf")]}),
        ": word 1 at byte 4: numbers that are not finite",
    ),
]


@pytest.mark.parametrize(("data", "message"), BROKEN)
def test_broken_files(tmp_path, data, message, vocabulary):
    path = tmp_path / "v"
    path.write_bytes(data)
    with pytest.raises(RegardError) as caught:
        read_vectors(path)
    assert str(caught.value) == f"{path}{message}"


def test_the_place_in_a_large_binary_file(tmp_path):
    data = word2vec_binary(numbers_of([f"w{number}" for number in range(9000)], 40), b"")
    (tmp_path / "v").write_bytes(data[:-1])
    begin = len(data) - len("w8999 ") - 4 * 40
    with pytest.raises(RegardError, match=f"word 9000 of 9000, which begins at byte {begin}, is"):
        read_vectors(tmp_path / "v", {"w1"})


def test_an_embedding_is_changed_when_all_is_read_or_not_at_all(tmp_path, vocabulary):
    (tmp_path / "v").write_text("the 1 2\nparis 1\n")
    embedding = nn.Embedding(len(vocabulary), 2)
    before = embedding.weight.detach().clone()
    with pytest.raises(RegardError):
        load_vectors(tmp_path / "v", vocabulary, embedding, frozen=True)
    assert torch.equal(embedding.weight, before)
    assert embedding.weight.requires_grad


def test_embeddings_that_do_not_fit(tmp_path, vocabulary):
    (tmp_path / "v").write_text("the 1 2\n")
    with pytest.raises(ShapeError) as caught:
        load_vectors(tmp_path / "v", vocabulary, nn.Embedding(len(vocabulary), 3))
    assert str(caught.value) == f"{tmp_path / 'v'}: vectors of 2 numbers, but the embedding has 3"
    with pytest.raises(ShapeError, match="the embedding has 3 rows, the vocabulary 10 words"):
        load_vectors(tmp_path / "v", vocabulary, nn.Embedding(3, 2))
    with pytest.raises(RegardError, match="there is no file"):
        read_vectors(tmp_path / "none")
