"""Models by name (packaged, a local folder, or `module:function`), and one run of them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.aggregate import Words
from regard.aggregate.statistics.token_positions import is_special
from regard.cli import packaged
from regard.cli.packaged import LookResult, studies
from regard.cli.packaged.studies import STUDIES
from regard.errors import RegardError
from regard.record import Record, Trace

PACKAGED: dict[str, Callable[[], packaged.TextModel]] = {
    "minilm": packaged.minilm,
    "rxnmapper": packaged.rxnmapper,
    "smollm2": packaged.smollm2,
    **STUDIES,
}
#: An example text for each packaged model, the word of it to look at, and the word that it finds.
EXAMPLES: dict[str, tuple[str, str | None, str | None]] = {
    "minilm": ("The animal did not cross the street because it was too tired", "it", "animal"),
    "rxnmapper": ("CCO.CC(=O)O>>CCOC(C)=O", None, None),
    "smollm2": ("The cat sat on the mat. The cat sat on the", "the#4", "mat"),
    **studies.EXAMPLES,
}
#: Models of sound and images, shown on a page, with an example file each.
FILES: dict[str, tuple[Callable[[], packaged.Listener | packaged.Segmenter], Path]] = {
    "whisper": (packaged.whisper, packaged.SPEECH),
    "mobilesam": (packaged.mobilesam, packaged.CAT),
}


@dataclass(frozen=True)
class ModelRun:
    """A model ready to run, and the words its positions stand for."""

    title: str
    run: Callable[[], Any]
    model: Any
    words: Words | None
    answer: Callable[[Any], str] | None = None  #: what an output says, in words

    def trace(self) -> Trace:
        """Run the model once and capture its attention."""
        return self.look().trace

    def look(self) -> LookResult:
        """The attention of one run, with its words."""
        with torch.inference_mode(), regard.capture(self.model) as trace:
            output = self.run()
        answer = None if self.answer is None else self.answer(output)
        words = [] if self.words is None else [self.words]
        result = LookResult(trace, self.title, words, answer=answer)
        if self.words is None or not over_words(result):
            return result
        return replace(result, trace=result.trace.with_tokens(self.words.tokens))


def model_run(model: str, text: str | None) -> ModelRun:
    """The model that an option names, with a text to run it on.

    Args:
        model: a packaged model's short name, a folder saved by transformers, or `module:function`,
            which returns a model and its inputs, optionally also the tokens.
        text: what to run it on; None for the packaged model's own example.
    """
    if is_function(model):
        return _from_function(model, text)
    loaded = loaded_model(model)
    encoded = loaded.encode(_text(model, text))
    network = loaded.model
    return ModelRun(
        loaded.title,
        lambda: network(**encoded.inputs),
        network,
        encoded.words,
        loaded.answer,
    )


def look_at(model: str, text: str | None, generate: int = 0) -> LookResult:
    """Run a model on a text or a file, or let it continue a text.

    Args:
        model: as for `model_run`, or one of `FILES`.
        text: the text, or the path of a file; None for the model's own example.
        generate: how many tokens the model adds to the text.
    """
    if generate < 0:
        raise RegardError(f"--generate {generate}: expected a number of tokens")
    if generate:
        if model not in PACKAGED:
            raise RegardError(f"--generate {generate}: {model} generates no text; smollm2 does")
        return loaded_model(model).continued(_text(model, text), generate)
    if model in FILES:
        load, example = FILES[model]
        with packaged.quietly():
            return load().look(example if text is None else Path(text))
    return model_run(model, text).look()


def over_words(result: LookResult) -> list[Record]:
    """The records whose queries and keys are the words, lowest layer first."""
    records = [record for record in result.trace if record.site.axes_known]
    if not result.words:
        first = records[0].shape[2:] if records else None
        return [record for record in records if record.shape[2:] == first]
    size = len(result.words[0].pieces)
    return [record for record in records if record.shape[2:] == (size, size)]


def is_function(model: str) -> bool:
    """Whether a name is `module:function`; names of studies never are."""
    return ":" in model and not model.startswith("study:") and not Path(model).is_dir()


def loaded_model(model: str) -> packaged.TextModel:
    """A packaged model by its short name, or one of a folder."""
    if model not in PACKAGED and not Path(model).is_dir():
        raise RegardError(
            f"--model {model!r}: expected {', '.join(PACKAGED)}, a folder saved by transformers, "
            f"or module:function; with --html also {', '.join(FILES)}"
        )
    if model in STUDIES:  # these need no other package
        return STUDIES[model]()
    with packaged.quietly():
        return PACKAGED[model]() if model in PACKAGED else from_folder(Path(model))


def _text(model: str, text: str | None) -> str:
    if text is None:
        return EXAMPLES.get(model, EXAMPLES["minilm"])[0]
    if not text.strip():
        raise RegardError(f"there is no word in {text!r}")
    return text


def from_folder(path: Path) -> packaged.TextModel:
    """A model and a tokenizer that transformers saved."""
    models = packaged.transformers()
    if not (path / "config.json").exists():
        raise RegardError(
            f"--model {path}: there is no config.json, so transformers did not save it"
        )
    try:
        tokenizer = models.AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = models.AutoModel.from_pretrained(path, local_files_only=True).eval()
    except (OSError, ValueError, KeyError) as error:
        raise RegardError(f"--model {path}: transformers cannot load it: {error}") from error
    if not tokenizer.is_fast:
        raise RegardError(f"--model {path}: its tokenizer is not a fast one, which words need")
    title = path.resolve().name
    if getattr(model.config, "is_encoder_decoder", False):
        model, title = model.get_encoder(), f"{title}, encoder"
    longest = getattr(model.config, "max_position_embeddings", None)
    encode = packaged.encoder_for(tokenizer, longest)
    return packaged.TextModel(title, model, encode, tokenizer)


def _from_function(name: str, text: str | None) -> ModelRun:
    """`module:function`, imported as Python would with the current folder on the path."""
    function = function_named(name)
    parameters = inspect.signature(function).parameters.values()
    required = [parameter.default is parameter.empty for parameter in parameters]
    if text is not None and not required:
        raise RegardError(f"{name} takes no text, but there is one: {text!r:.40}")
    if text is None and any(required[:1]):
        text = EXAMPLES["minilm"][0]
    returned = function() if text is None else function(text)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise RegardError(f"{name} returned {type(returned).__name__}, expected (model, inputs)")
    model, inputs, *rest = returned
    if not callable(model):
        raise RegardError(f"{name} returned {type(model).__name__} as the model")
    words = _words_of([str(token) for token in rest[0]]) if rest else None
    if isinstance(inputs, dict) or hasattr(inputs, "keys"):
        return ModelRun(name, lambda: model(**inputs), model, words)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    return ModelRun(name, lambda: model(*inputs), model, words)


def _words_of(tokens: list[str]) -> Words:
    """Every token a word of its own; those spelt like special ones are marked."""
    return Words.each(tokens, [is_special(token) for token in tokens])


def takes_text(name: str) -> bool:
    """Whether `module:function` takes a text."""
    return bool(inspect.signature(function_named(name)).parameters)


def function_named(name: str, option: str = "--model ") -> Callable[..., Any]:
    """What `module:function` names, imported with the current folder on the path."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise RegardError(f"{option}{name!r}: expected module:function")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RegardError(f"{option}{name}: {error}") from error
    finally:
        sys.path.remove(folder)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise RegardError(f"{option}{name}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]
