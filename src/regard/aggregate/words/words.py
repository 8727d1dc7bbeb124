"""From pieces of words to words.

Attention *to* a word is the sum over its pieces, so that rows still sum to 1; attention *from* a
word is the mean over its pieces.

>>> import torch
>>> from regard.aggregate import Words
>>> words = Words.of("unbelievable news", [(0, 0), (0, 2), (2, 12), (13, 17), (0, 0)],
...                  ["[CLS]", "un", "##believable", "news", "[SEP]"])
>>> words.names
['[CLS]', 'unbelievable', 'news', '[SEP]']
>>> words.merge(torch.eye(5)[None, None])[0, 0, 1]
tensor([0., 1., 0., 0.])
>>> words.without_special().names
['unbelievable', 'news']
"""

from __future__ import annotations

import difflib
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.words.marks import Marks, marks_of, spelt
from regard.aggregate.words.spans import visible_name, words_of_pieces
from regard.errors import RegardError, ShapeError

Offsets = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Words:
    """The words of a text, and the pieces each one is made of.

    A piece that spans several words joins them into one. Special tokens ([CLS], padding)
    are words of their own until `without_special` or `pooled_special`.
    """

    names: list[str]
    pieces: list[int | None]  #: for each piece, the number of its word; None: of no word
    tokens: list[str]  #: the pieces themselves
    special: frozenset[int] = frozenset()  #: numbers of the words that are special tokens

    @classmethod
    def of(
        cls,
        text: str,
        offsets: Offsets,
        tokens: Sequence[str],
        special: Sequence[bool] | None = None,
    ) -> Words:
        """Words of a text whose pieces lie at `offsets` (start, end).

        Args:
            text: the text that was tokenised.
            offsets: the characters of each piece.
            tokens: the pieces.
            special: which of them are special; those with empty offsets when None.
        """
        special = [start >= end for start, end in offsets] if special is None else special
        return cls._of_texts([text], [0] * len(offsets), offsets, tokens, special)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, text: str, pair: str | None = None, **options: Any
    ) -> Words:
        """Words of a text as a tokenizer of transformers splits it.

        A slow tokenizer, which has no offsets, is read by its marks.

        Args:
            tokenizer: what the model's inputs were made with.
            text: the text.
            pair: a second text in the same input, if there is one.
            options: what else it was called with, such as `add_special_tokens=False`.
        """
        for string in (text, pair):
            if string is not None and not isinstance(string, str):
                raise RegardError(f"from_tokenizer: {string!r:.60}, expected one text")
        encoded = tokenizer(text, **({} if pair is None else {"text_pair": pair}), **options)
        ids = torch.as_tensor(encoded["input_ids"]).flatten().tolist()
        word_ids = {getattr(tokenizer, f"{kind}_token_id", None) for kind in ("unk", "mask")}
        special_ids = set(tokenizer.all_special_ids) - word_ids
        special = [number in special_ids for number in ids]
        if getattr(encoded, "encodings", None):
            encoding = encoded.encodings[0]
            special = [a or bool(b) for a, b in zip(special, encoding.special_tokens_mask)]
            return cls._of_encoding(encoding, text, pair, special)
        tokens = tokenizer.convert_ids_to_tokens(ids)
        marks = marks_of(tokenizer.get_vocab())
        if marks is None:
            raise RegardError(
                f"from_tokenizer: {type(tokenizer).__name__} has neither offsets nor known marks; "
                "use Words.of or Words.given"
            )
        return cls.from_marks(tokens, marks, special)

    @classmethod
    def from_encoding(
        cls, encoding: Any, text: str, pair: str | None = None, *, example: int = 0
    ) -> Words:
        """Words of one example that a fast tokenizer of transformers has encoded.

        Args:
            encoding: what the tokenizer returned, of one text or of a batch.
            text: the text of that example.
            pair: its second text, if there is one.
            example: which of the batch.
        """
        encodings = getattr(encoding, "encodings", [encoding])
        if not encodings or not hasattr(encodings[0], "offsets"):
            raise RegardError(
                "from_encoding: only the encoding of a fast tokenizer has offsets; "
                "Words.from_tokenizer reads others by their marks"
            )
        if not 0 <= example < len(encodings):
            raise RegardError(f"from_encoding: example={example}, but there are {len(encodings)}")
        encoded = encodings[example]
        return cls._of_encoding(
            encoded, text, pair, [bool(flag) for flag in encoded.special_tokens_mask]
        )

    @classmethod
    def from_marks(
        cls, tokens: Sequence[str], marks: Marks, special: Sequence[bool] | None = None
    ) -> Words:
        """Words of pieces without their text, by the marks on them.

        Args:
            tokens: the pieces.
            marks: "wordpiece" ("##" goes on), "sentencepiece" ("▁" begins), "byte_level" ("Ġ"
                begins, letters stand for bytes: GPT-2 and its kin) or "bytes" (one each: ByT5).
            special: which of them are special; none when None.
        """
        special = [False] * len(tokens) if special is None else special
        text, offsets = spelt(tokens, marks, special)
        return cls.of(text, offsets, tokens, special)

    @classmethod
    def given(
        cls,
        numbers: Sequence[int | None],
        tokens: Sequence[str],
        names: Sequence[str] | None = None,
    ) -> Words:
        """Words by the number of each piece's word, None for a special token.

        As `encoding.word_ids()` of transformers gives them.

        Args:
            numbers: for each piece the number of its word.
            tokens: the pieces.
            names: of the words, by number; their pieces joined when None. A word that no piece
                belongs to comes last: it gets no attention and gives none.
        """
        _as_many("given", numbers, tokens)
        spelled: list[str] = []
        pieces: list[int | None] = []
        indices: dict[Any, int] = {}
        special = set()
        for index, (number, token) in enumerate(zip(numbers, tokens)):
            key = (index,) if number is None else number
            if key not in indices:
                indices[key] = len(spelled)
                spelled.append(token if number is None or names is None else _name(names, number))
                if number is None:
                    special.add(indices[key])
            elif names is None:
                spelled[indices[key]] += token.removeprefix("##").lstrip("▁Ġ")
            pieces.append(indices[key])
        if names is None:
            spelled = [name.lstrip("▁Ġ") or name for name in spelled]
        else:
            spelled += [name for number, name in enumerate(names) if number not in indices]
        return cls(spelled, pieces, list(tokens), frozenset(special))

    @classmethod
    def each(cls, tokens: Sequence[str], special: Sequence[bool] = ()) -> Words:
        """Every piece a word of its own; `special` says which are special tokens, if any."""
        marked = frozenset(index for index, flag in enumerate(special) if flag)
        return cls(list(tokens), list(range(len(tokens))), list(tokens), marked)

    def without_special(self) -> Words:
        """Without special tokens: attention from and to them is left out."""
        return self._special_at(None)

    def pooled_special(self, name: str = "[special]") -> Words:
        """With one word, the last, in the place of all special tokens."""
        return self._special_at(name) if self.special else self

    def index(self, word: str | int, name: str = "word=") -> int:
        """The number of a word.

        Args:
            word: the word, whatever its case; its n-th occurrence, as "it#2"; or the position of a
                token, which means the word it belongs to.
            name: what errors call it.
        """
        if not isinstance(word, str):
            return self._index_of_position(word, name)
        readings = [(word, 1)]
        base, mark, number = word.rpartition("#")
        if mark and number.isdecimal() and int(number):
            readings.append((base, int(number)))
        for text, occurrence in readings:
            folded = text.casefold()
            copies = [index for index, own in enumerate(self.names) if own.casefold() == folded]
            if len(copies) >= occurrence:
                return copies[occurrence - 1]
        words = " ".join(self.names[:40]) + " …" * (len(self.names) > 40)
        if word in self.tokens:
            raise RegardError(f"{name}{word!r} is a special token, which is left out of: {words}")
        near = difflib.get_close_matches(word, dict.fromkeys(self.names), n=3, cutoff=0.5)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise RegardError(f"{name}{word!r} is not among the words: {words}{hint}")

    def _index_of_position(self, position: Any, name: str) -> int:
        try:
            if isinstance(position, bool):
                raise TypeError
            number = operator.index(position)
        except TypeError:
            raise RegardError(f"{name}{position!r}, expected a word or a position") from None
        if not -len(self.pieces) <= number < len(self.pieces):
            raise RegardError(f"{name}{number} is outside the {len(self.pieces)} positions")
        index = self.pieces[number]
        if index is None:
            token = self.tokens[number]
            raise RegardError(f"{name}{number} is the special token {token!r}, which is left out")
        return index

    def merge(
        self,
        weights: Float[Tensor, "*rest query_piece key_piece"],
        keys: Words | None = None,
        *,
        renormalise: bool = False,
    ) -> Float[Tensor, "*rest query_word key_word"]:
        """Weights between pieces as weights between words: sum over keys, mean over queries.

        Args:
            weights: over pieces, with any axes before the last two.
            keys: the words of the other text, for cross-attention; the same when None.
            renormalise: let rows sum to 1 again where special tokens were left out. A row that had
                nothing else stays 0.
        """
        keys = self if keys is None else keys
        if weights.shape[-2:] != (len(self.pieces), len(keys.pieces)):
            sizes = f"{len(self.pieces)} pieces"
            if keys is not self:
                sizes = (
                    f"{len(self.pieces)} query pieces and the other {len(keys.pieces)} key pieces"
                )
            raise ShapeError(f"weights are {tuple(weights.shape[-2:])}, but the text has {sizes}")
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        rows = self._added(exact, -2)
        merged = keys._added(rows / self._counts(exact)[:, None], -1)
        if renormalise:
            total = merged.sum(-1, keepdim=True)
            merged = merged / torch.where(total == 0, 1.0, total)
        return merged.to(weights.dtype)

    def sum(self, values: Float[Tensor, "*rest piece"]) -> Float[Tensor, "*rest word"]:
        """Numbers over pieces, such as attributions, as numbers over words: the sum of each."""
        if values.shape[-1] != len(self.pieces):
            raise ShapeError(
                f"there are {values.shape[-1]} values, but the text has {len(self.pieces)} pieces"
            )
        exact = values.to(torch.promote_types(values.dtype, torch.float32))
        return self._added(exact, -1).to(values.dtype)

    def _added(self, values: Tensor, axis: int) -> Tensor:
        """The sum over each word's pieces, along an axis."""
        kept = [index for index, word in enumerate(self.pieces) if word is not None]
        index, word = (
            torch.tensor(numbers, dtype=torch.long, device=values.device)
            for numbers in (kept, [self.pieces[piece] for piece in kept])
        )
        sizes = list(values.shape)
        sizes[axis] = len(self.names)
        return values.new_zeros(sizes).index_add(axis, word, values.index_select(axis, index))

    def _counts(self, like: Tensor) -> Tensor:
        """How many pieces each word has, (word,); 1 for a word without."""
        counts = Counter(self.pieces)
        numbers = [max(1, counts[word]) for word in range(len(self.names))]
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)

    def _special_at(self, name: str | None) -> Words:
        """Special tokens pooled into one word of this name, or in no word."""
        kept = [word for word in range(len(self.names)) if word not in self.special]
        indices: dict[int | None, int | None] = {word: index for index, word in enumerate(kept)}
        names = [self.names[word] for word in kept]
        pool = None if name is None else len(names)
        indices |= dict.fromkeys(self.special, pool) | {None: None}
        return replace(
            self,
            names=names if name is None else [*names, name],
            pieces=[indices[word] for word in self.pieces],
            special=frozenset() if pool is None else frozenset({pool}),
        )

    @classmethod
    def _of_encoding(
        cls, encoding: Any, text: str, pair: str | None, special: Sequence[bool]
    ) -> Words:
        texts = [text] if pair is None else [text, pair]
        which = [number or 0 for number in encoding.sequence_ids]
        if max(which, default=0) >= len(texts):
            raise RegardError("two texts were encoded; give the second one as pair=")
        return cls._of_texts(texts, which, encoding.offsets, encoding.tokens, special)

    @classmethod
    def _of_texts(
        cls,
        texts: Sequence[str],
        which: Sequence[int],
        offsets: Offsets,
        tokens: Sequence[str],
        special: Sequence[bool],
    ) -> Words:
        """Words of pieces, each of which lies in one of several texts."""
        _as_many("of", offsets, tokens)
        _as_many("of", special, tokens)
        groups = words_of_pieces(texts, which, offsets, special)
        names: list[str] = []
        pieces: list[int | None] = []
        indices: dict[Any, int] = {}
        for index, (group, token) in enumerate(zip(groups, tokens)):
            key = (index,) if group is None else group
            if key not in indices:
                indices[key] = len(names)
                names.append(
                    token if group is None else visible_name(texts[group[0]][slice(*group[1:])])
                )
            pieces.append(indices[key])
        marked = frozenset(indices[(index,)] for index, flag in enumerate(special) if flag)
        return cls(names, pieces, list(tokens), marked)


def _name(names: Sequence[str], number: int) -> str:
    if not 0 <= number < len(names):
        raise ShapeError(f"given: a piece is of word {number}, but there are {len(names)} names")
    return names[number]


def _as_many(method: str, numbers: Sequence[Any], tokens: Sequence[str]) -> None:
    if len(numbers) != len(tokens):
        raise ShapeError(f"Words.{method}: {len(numbers)} places, but {len(tokens)} tokens")
