"""Documents of every kind, documents that fail, and what a collection tells."""

import gzip
import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from corpus_models import WORDS, Reader, texts
from torch import nn

import regard
from regard.corpus import Corpus, Failure, Mean, Shares, Sharpness, Statistic, Total
from regard.errors import RegardError

TEXTS = texts(20)
POISON = [1, WORDS - 1, 2]


def collected(documents, statistics=None, model=None, **options):
    reading = {name: options.pop(name) for name in ("column", "max_length") if name in options}
    corpus = Corpus(documents, batch_size=4, shard_size=8, **reading)
    return regard.collect(model or Reader(), corpus, statistics or [Sharpness()], **options)


def jsonl(path, documents):
    lines = "\n".join(json.dumps(document) for document in documents)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        file.write(lines + "\n\n")
    return path


def parquet(path, documents):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"input_ids": documents, "id": range(len(documents))}), path)
    return path


def padded(documents):
    """Batches as a loader makes them, of four."""
    batches = []
    for start in range(0, len(documents), 4):
        some = documents[start : start + 4]
        longest = max(map(len, some))
        ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in some])
        real = torch.arange(longest) < torch.tensor([[len(tokens)] for tokens in some])
        batches.append({"input_ids": ids, "attention_mask": real.long()})
    return batches


KINDS = {
    "lists": lambda folder: TEXTS,
    "tensors": lambda folder: [torch.tensor(tokens) for tokens in TEXTS],
    "rows": lambda folder: [{"input_ids": tokens, "label": 1} for tokens in TEXTS],
    "padded rows": lambda folder: [
        {"input_ids": tokens + [0] * 3, "attention_mask": [1] * len(tokens) + [0] * 3}
        for tokens in TEXTS
    ],
    "iterator": lambda folder: iter(TEXTS),
    "loader": lambda folder: torch.utils.data.DataLoader(TEXTS, collate_fn=list, batch_size=None),
    "batches": lambda folder: padded(TEXTS),
    "jsonl": lambda folder: jsonl(folder / "a.jsonl", [{"input_ids": t} for t in TEXTS]),
    "jsonl.gz": lambda folder: jsonl(folder / "a.jsonl.gz", [{"input_ids": t} for t in TEXTS]),
    "parquet": lambda folder: parquet(folder / "a.parquet", TEXTS),
}


@pytest.fixture(scope="module")
def plain():
    return collected(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_of_every_kind_give_the_same(kind, tmp_path, plain):
    found = collected(KINDS[kind](tmp_path))
    assert (found.examples, found.tokens, found.sites) == (20, sum(map(len, TEXTS)), plain.sites)
    for site in plain.sites:
        torch.testing.assert_close(
            found["sharpness"][site].entropy, plain["sharpness"][site].entropy, rtol=1e-9, atol=1e-9
        )


def test_documents_are_read_as_they_are_needed(tmp_path):
    """Of a corpus without end no more than a shard is in memory."""

    def documents():
        for number, tokens in enumerate(TEXTS):
            saved = len(list((tmp_path / "run").glob("shards/*.safetensors")))
            assert saved == number // 8
            yield tokens

    collected(documents(), out=tmp_path / "run")


def test_long_documents_are_cut_and_counted():
    found = collected(TEXTS, max_length=5)
    short = [tokens[:5] for tokens in TEXTS]
    assert found.tokens == sum(map(len, short))
    assert found.state.cut == sum(len(tokens) > 5 for tokens in TEXTS) > 0
    assert f"{found.state.cut} documents cut" in repr(found)
    assert found.state.tensors().keys() == collected(short).state.tensors().keys()


# -- documents that fail


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (POISON, "ValueError: a poisoned token"),
        ([], "it has no tokens"),
        ([1, 2.5], "its tokens are [1, 2.5], expected whole numbers"),
        ("a text", "it is a text, which needs a tokenizer: collect(..., tokenizer=...)"),
        ({"body": "a text"}, "it has 'body', expected 'input_ids' or a text in 'text'"),
        (7, "it is a int, expected a text, token numbers or a dictionary"),
    ],
)
def test_a_document_that_fails_is_named_or_left_out(document, text):
    documents = [*TEXTS[:5], document, *TEXTS[5:]]
    with pytest.raises(RegardError) as raised:
        collected(documents)
    assert str(raised.value) == f"document 5: {text}"

    found = collected(documents, on_error="skip")
    assert found.failures == [Failure(5, text)]
    assert found.examples == 20 and "1 documents left out" in repr(found)
    plain = collected(TEXTS)
    for site in plain.sites:
        mine, theirs = found["sharpness"][site].entropy, plain["sharpness"][site].entropy
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_lines_that_fail_are_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"input_ids": [1, 2]}\n{"input_ids"\n\n\xff\xfe\n{"input_ids": [3]}\n')
    with pytest.raises(RegardError, match="document 1: not JSON"):
        collected(path)
    found = collected(path, on_error="skip", out=tmp_path / "run")
    assert found.examples == 2 and [failure.document for failure in found.failures] == [1, 2]
    lines = (tmp_path / "run" / "failures.jsonl").read_text().splitlines()
    assert [json.loads(line)["document"] for line in lines] == [1, 2]


def test_a_table_as_text_is_refused(tmp_path):
    with pytest.raises(
        RegardError, match=r"a.csv is a table, expected lines \(.txt\), .jsonl or .parquet; its te"
    ):
        collected(tmp_path / "a.csv")


def test_a_compressed_file_that_was_cut_is_named(tmp_path):
    path = jsonl(tmp_path / "a.jsonl.gz", [{"input_ids": t} for t in TEXTS])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RegardError, match=r"a.jsonl.gz cannot be read: Compressed file ended bef"):
        collected(path)


def test_labels_that_fail_are_those_of_a_document():
    def labels(batch):
        if 3 in batch.numbers:
            raise ValueError("no label")
        return {"odd": batch.tokens % 2 == 1}

    corpus = Corpus(TEXTS, labels=labels, batch_size=4, shard_size=8)
    with pytest.raises(RegardError, match=r"^document 3: ValueError: no label$"):
        regard.collect(Reader(), corpus, [Shares(["odd"])])
    found = regard.collect(Reader(), corpus, [Shares(["odd"])], on_error="skip")
    assert found.failures == [Failure(3, "ValueError: no label")] and found.examples == 19


def test_documents_with_other_inputs_are_read_one_by_one():
    def model(input_ids, attention_mask, position_ids=None):
        return Reader()(input_ids, attention_mask)

    documents = [{"input_ids": [1, 2], "position_ids": [0, 1]}, {"input_ids": [3]}]
    with pytest.raises(RegardError, match=r"^documents 0, 1: it has no 'position_ids', which oth"):
        collected(documents, model=model)
    assert collected(documents, model=model, on_error="skip").tokens == 3


class Width(Statistic):
    """Has another size for each text, which is an error."""

    def start(self):
        return {"total": Total()}

    def update(self, parts, attention):
        parts["total"].add(torch.zeros(attention.record.shape.keys))


def test_no_document_counts_by_half():
    documents, statistics = [[1, 2, 3], POISON[:2], [4, 5]], [Sharpness(), Width()]
    text = r"^layers.0: width: Total: \(\d,\), expected \(\d,\) as before"
    with pytest.raises(RegardError, match=text):
        collected(documents, statistics, on_error="skip")


class Short(Reader):
    """Has four positions."""

    config = SimpleNamespace(max_position_embeddings=4)

    def forward(self, input_ids, attention_mask):
        if input_ids.shape[1] > 4:
            raise IndexError("no such position")
        return super().forward(input_ids, attention_mask)


def test_a_document_longer_than_the_model_is_told_so():
    with pytest.raises(
        RegardError,
        match=r"^document 1: it has 5 tokens, and the model 4 positions: Corpus\(..., "
        r"max_length=4\) cuts it \(IndexError: no such position\)",
    ):
        collected([[1, 2], [1, 2, 3, 4, 5]], model=Short())


def test_where_nothing_works_there_is_an_error():
    with pytest.raises(
        RegardError, match=r"all 8 documents failed, the first, 0, with: ValueError"
    ):
        collected([POISON] * 20, on_error="skip")
    with pytest.raises(RegardError, match=r"all 2 documents failed"):
        collected([POISON] * 2, on_error="skip")
    with pytest.raises(RegardError, match="collect: the corpus has no documents"):
        collected([])


@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_a_model_without_attention_is_an_error():
    with pytest.raises(RegardError, match="the model has no attention that capture sees"):
        collected(TEXTS, where="elsewhere*")


class Numbers(Reader):
    """Weights that are not finite, of some texts."""

    def forward(self, input_ids, attention_mask):
        hidden = self.embedding(input_ids)
        hidden = torch.where(input_ids[..., None] == 3, math.nan, hidden)
        return self.layers[0](hidden, attention_mask > 0)


def test_weights_that_are_not_finite_are_no_numbers():
    documents = [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(RegardError, match=r"^document 1: layers.0: its weights are not finite"):
        collected(documents, model=Numbers())
    found = collected(documents, model=Numbers(), on_error="skip")
    assert found.failures == [Failure(1, "layers.0: its weights are not finite")]


# -- models


class Crossing(nn.Module):
    """Texts attend to themselves, then to something else."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.own = nn.MultiheadAttention(8, 2, batch_first=True)
        self.other = nn.MultiheadAttention(8, 2, batch_first=True)
        self.dropout = nn.Dropout()
        self.modes = []

    def forward(self, input_ids, attention_mask):
        self.modes.append(self.training)
        hidden = self.dropout(self.embedding(input_ids))
        hidden, _ = self.own(hidden, hidden, hidden, key_padding_mask=attention_mask == 0)
        pictures = self.embedding(input_ids[:, :1]).expand(-1, 40, -1)
        return self.other(hidden, pictures, pictures)[0]


def test_attentions_that_are_no_self_attention_are_left_out():
    model = Crossing()
    found = collected(TEXTS, model=model)
    assert found.sites == ["own"] and list(found.left_out) == ["other"]
    assert re.search(r"another sequence|it is \(4, 2, \d+, 40\)", found.left_out["other"])
    assert set(model.modes) == {False} and model.training  # eval mode, and back


def test_some_attentions():
    assert collected(TEXTS, where="layers.1").sites == ["layers.1"]


def test_a_function_may_run_the_model():
    model = Reader()

    def without_padding(input_ids, attention_mask):
        assert bool(attention_mask.all())
        return model(input_ids, attention_mask)

    corpus = Corpus([[1, 2, 3]] * 4, batch_size=2)
    found = regard.collect(without_padding, corpus, [Sharpness()])
    assert found.examples == 4 and len(found.sites) == 2


# -- what a collection tells


def test_a_collection_is_a_mapping(plain):
    assert list(plain) == ["sharpness"] and len(plain) == 1
    tokens = sum(map(len, TEXTS))
    assert repr(plain) == f"Collection(sharpness: 20 documents, {tokens} tokens, 2 attentions)"
    with pytest.raises(KeyError, match="no statistic is named 'sharpnes', such as 'sharpness'"):
        plain["sharpnes"]


def test_a_table_has_a_row_for_each_head_and_quantity(plain):
    columns = plain.table("sharpness")
    assert len({len(column) for column in columns.values()}) == 1
    assert set(columns["quantity"]) == {"entropy", "effective"}
    row = columns["mean"].index(plain["sharpness"]["layers.1"].effective.mean[2].item())
    assert (columns["layer"][row], columns["head"][row], columns["site"][row]) == (1, 2, "layers.1")
    assert columns["error"][row] == plain["sharpness"]["layers.1"].effective.error[2].item()


def test_a_report_needs_figures(plain):
    with pytest.raises(RegardError, match="'sharpness' is HeadSharpness, not Figures"):
        plain.report("sharpness")


class Idle(regard.Statistic):
    """Adds nothing."""

    def start(self):
        return {"mean": Mean()}

    def update(self, parts, attention):
        pass


def test_a_statistic_that_adds_nothing_has_no_result():
    found = collected(TEXTS, [Idle()])
    with pytest.raises(RegardError, match=r"idle: layers.0: nothing was added to 'mean'"):
        found["idle"]


def test_a_reducer_is_a_statistic():
    found = collected(TEXTS, [regard.Histogram(6), Sharpness()])
    assert list(found) == ["histogram", "sharpness"]
    counts = found["histogram"]["layers.0"].mean * 20
    pairs = sum(len(tokens) ** 2 for tokens in TEXTS)
    assert counts.sum(1).tolist() == pytest.approx([pairs] * 3)


# -- what is refused


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (lambda: regard.collect(Reader, TEXTS), "collect: model is <class .*, expected a model"),
        (
            lambda: collected(TEXTS, on_error="ignore"),
            "on_error='ignore', expected 'raise' or 'ski",
        ),
        (lambda: collected("a.txt"), "'a.txt' is a str, expected documents, .*; for a file pass"),
        (lambda: collected(torch.ones(2, 3)), "is a Tensor, expected documents"),
        (
            lambda: regard.collect(Reader(), TEXTS, Sharpness),
            "statistics: <class .*expected a list",
        ),
        (
            lambda: collected(TEXTS, [Sharpness]),
            "statistics: the class Sharpness, expected objects",
        ),
        (lambda: collected(TEXTS, [Sharpness(), Sharpness(5)]), "two are named 'sharpness'; give"),
        (lambda: Corpus(TEXTS, batch_size=0), "batch_size=0, expected a whole number from 1"),
        (lambda: Corpus(TEXTS, max_length=2.5), "max_length=2.5, expected a whole number from 1"),
        (
            lambda: regard.collect(Reader(), Corpus(TEXTS), tokenizer=len),
            "tokenizer=: the Corpus has its own",
        ),
        (lambda: collected(TEXTS, [Shares(["word"])]), "Shares: no label 'word', there are none"),
    ],
)
def test_what_makes_no_sense_is_refused(question, text, without_shape_checks):
    with pytest.raises(RegardError, match=text):
        question()


def test_a_missing_column_is_named(tmp_path):
    path = parquet(tmp_path / "a.parquet", TEXTS)
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.table({"body": ["a text"]}), path)
    with pytest.raises(RegardError, match=r"a.parquet has no column 'text', there are body"):
        collected(path)
