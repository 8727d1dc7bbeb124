"""A vocabulary of pieces of words, by sentencepiece."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch
from torch import Tensor

from regard.aggregate import Words
from regard.aggregate.words.marks import spelt
from regard.errors import MissingExtraError, RegardError
from regard.translate.tokens import BEGIN, END, NAMES, PAD, UNKNOWN
from regard.translate.vocabulary.contract import Vocabulary, silent, spoken
from regard.translate.vocabulary.tokenise import tidy, token_spans

_SPACE = "▁"
_FRESH = (1 << 32) - 1  # sentencepiece's own seed, which stands for a fresh one in each thread
_LONGEST = 1 << 20  # bytes of a sentence; sentencepiece's own 4192 would leave longer ones out


class PieceVocabulary(Vocabulary):
    """Pieces of words; a character that is none of them is spelt by its bytes.

    So every text comes back as it was, but for its white space (one plain space each), its Unicode
    form (composed), and the mark ▁, which sentencepiece keeps for the space.

    Args:
        model: the bytes of a sentencepiece model whose first four pieces are padding, begin, end
            and unknown.
        lower: texts are read in lower case.
    """

    def __init__(self, model: bytes, *, lower: bool = False) -> None:
        self.model = model
        self.lower = lower
        try:
            self._processor = _library().SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise RegardError(f"these {len(model)} bytes are no sentencepiece model") from error
        processor = self._processor
        numbers = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
        if numbers != (PAD, BEGIN, END, UNKNOWN):
            raise RegardError(
                f"padding, begin, end and unknown are the pieces {numbers} of this sentencepiece "
                f"model, expected {(PAD, BEGIN, END, UNKNOWN)}"
            )

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        *,
        size: int,
        kind: Literal["unigram", "bpe"] = "unigram",
        lower: bool = False,
    ) -> PieceVocabulary:
        """Pieces that suit some sentences; the same sentences give the same pieces.

        Args:
            sentences: the texts; those of both languages for a joint vocabulary.
            size: maximum number of pieces, with 256 bytes and the first four.
            kind: "unigram" (a model of pieces by likelihood) or "bpe" (frequent pairs, joined).
            lower: read in lower case.
        """
        if kind not in ("unigram", "bpe"):
            raise RegardError(f"kind={kind!r}, expected 'unigram' or 'bpe'")
        written = io.BytesIO()
        try:
            _library().SentencePieceTrainer.train(
                sentence_iterator=filter(None, (_read(text, lower) for text in sentences)),
                model_writer=written,
                vocab_size=size,
                hard_vocab_limit=False,
                model_type=kind,
                byte_fallback=True,
                normalization_rule_name="identity",
                num_threads=1,
                minloglevel=2,
                max_sentence_length=_LONGEST,
                **{f"{name}_id": number for name, number in _NUMBERS.items()},
                **{f"{name}_piece": NAMES[number] for name, number in _NUMBERS.items()},
            )
        except RuntimeError as error:
            raise RegardError(f"size={size}: {_reason(str(error))}") from error
        return cls(written.getvalue(), lower=lower)

    def __len__(self) -> int:
        return len(self._processor)

    def encode(self, text: str) -> list[int]:
        return list(self._processor.encode(_read(text, self.lower)))

    def sampled(self, texts: Iterable[str], *, alpha: float, seed: int) -> list[list[int]]:
        """The numbers of texts in pieces drawn by chance: subword regularisation.

        Args:
            texts: the texts.
            alpha: of "unigram", the power of a segmentation's probability: small values draw all
                alike (Kudo, 2018); of "bpe", the share of joins that are left out (Provilkov et
                al., 2020).
            seed: below 2³² - 1; the same one draws the same pieces.
        """
        read = [_read(text, self.lower) for text in texts]
        options = {"enable_sampling": True, "nbest_size": -1, "alpha": alpha, "num_threads": 1}
        library = _library()
        library.set_random_generator_seed(seed)
        try:  # in a new thread, as a thread's generator is seeded when it is first used
            with ThreadPoolExecutor(max_workers=1) as executor:
                return list(executor.submit(self._processor.encode, read, **options).result())
        finally:
            library.set_random_generator_seed(_FRESH)

    def decode(self, numbers: Iterable[int]) -> str:
        text_numbers = spoken(numbers)
        return str(self._processor.decode(text_numbers)) if text_numbers else ""

    def pieces(self, numbers: Iterable[int]) -> list[str]:
        return [self._processor.id_to_piece(int(number)) for number in numbers]

    def words(self, text: str) -> Words:
        return self.words_of(self.encode(text))

    def words_of(self, numbers: Sequence[int]) -> Words:
        pieces, special = self.pieces(numbers), silent(numbers)
        text, offsets = spelt(pieces, "sentencepiece", special)
        return grouped(text, offsets, pieces, special)

    def header(self) -> dict[str, Any]:
        return {"kind": "pieces", "lower": self.lower}

    def tensors(self) -> dict[str, Tensor]:
        return {"model": torch.frombuffer(bytearray(self.model), dtype=torch.uint8)}

    @classmethod
    def restored(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> PieceVocabulary:
        lower = header.get("lower", False)  # files of before there was a choice keep the case
        return cls(bytes(tensors["model"].cpu().tolist()), lower=lower)

    def __repr__(self) -> str:
        return f"PieceVocabulary({len(self)} pieces, lower={self.lower})"


_NUMBERS = {"pad": PAD, "bos": BEGIN, "eos": END, "unk": UNKNOWN}


def _reason(error: str) -> str:
    """Why sentencepiece cannot train, by its error."""
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return (
            f"too small for these sentences, expected at least {smallest[1]}: their characters, "
            "256 bytes and 4 special tokens"
        )
    if "!sentences_.empty()" in error:
        return "there is no text to train pieces on"
    return f"sentencepiece cannot train on these sentences: {error}"


def _read(text: str, lower: bool) -> str:
    whole = text.encode("utf-8", "replace").decode()  # half a surrogate pair has no bytes
    return tidy((whole.lower() if lower else whole).replace(_SPACE, " "))


def _library() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingExtraError("sentencepiece", "translate") from error
    return sentencepiece


def grouped(
    text: str, offsets: Sequence[tuple[int, int]], pieces: Sequence[str], special: Sequence[bool]
) -> Words:
    """The words of a text over its pieces, so that "t'aime" is two.

    A piece that reaches over several words makes one of them. A piece of space belongs to the word
    behind it.

    Args:
        text: what the pieces spell.
        offsets: the start and end of each.
        pieces: the pieces.
        special: which of them are special; each is a word of its own.
    """
    spans = token_spans(text)
    owners = _owners(text, spans)
    reached = [
        None if skip or not spans else _reached(text, owners, *span)
        for span, skip in zip(offsets, special)
    ]
    glued = {word for reach in reached if reach for word in range(*reach)}  # to the next
    firsts = list(range(len(spans)))
    for word in range(1, len(spans)):
        if word - 1 in glued:
            firsts[word] = firsts[word - 1]
    lasts = {first: word for word, first in enumerate(firsts)}
    numbers: list[int] = []
    names: list[str] = []
    indices: dict[int, int] = {}
    marked: set[int] = set()
    for index, (reach, skip) in enumerate(zip(reached, special)):
        key = firsts[reach[0]] if reach else -1 - index
        if key not in indices:
            indices[key] = len(names)
            name = text[spans[key][0] : spans[lasts[key]][1]] if reach else pieces[index]
            names.append(name)
            if skip:
                marked.add(indices[key])
        numbers.append(indices[key])
    return Words(names, list(numbers), list(pieces), frozenset(marked))


def _owners(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each character its word; for a space that of the next one, or the last."""
    owners: list[int] = []
    for word, (_, end) in enumerate(spans):
        owners += [word] * (end - len(owners))
    return owners + [len(spans) - 1] * (len(text) - len(owners))


def _reached(text: str, owners: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """The first and last word that a piece reaches."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return owners[start], owners[end - 1]
