"""What `regard look` looks at: a packaged model, a local folder, or somebody's own function."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.aggregate import Words
from regard.cli import packaged
from regard.errors import RegardError
from regard.record import Trace

PACKAGED: dict[str, Callable[[], packaged.Packaged]] = {
    "minilm": packaged.minilm,
    "rxnmapper": packaged.rxnmapper,
    "smollm2": packaged.smollm2,
}
#: A text that suits each packaged model, and the word of it to look at.
EXAMPLES = {
    "minilm": ("The animal did not cross the street because it was too tired", "it"),
    "rxnmapper": ("CCO.CC(=O)O>>CCOC(C)=O", None),
    "smollm2": ("The cat sat on the mat. The cat sat on the", None),
}
#: Models of what is not text, and a file to try each on. They are looked at on a page.
FILES: dict[str, tuple[Callable[[], packaged.Listener | packaged.Segmenter], Path]] = {
    "whisper": (packaged.whisper, packaged.SPEECH),
    "mobilesam": (packaged.mobilesam, packaged.CAT),
}


@dataclass(frozen=True)
class Subject:
    """A model ready to run, and the words its positions stand for."""

    title: str
    run: Callable[[], Any]
    model: Any
    words: Words | None

    def trace(self) -> Trace:
        """Run the model once, as it is, and take its attention."""
        with torch.inference_mode(), regard.capture(self.model) as found:
            self.run()
        return found


def subject(model: str, text: str | None) -> Subject:
    """The model that an option names, with a text to run it on.

    Args:
        model: a packaged model's short name, a folder that transformers saved, or
            `module:function`, which returns a model and its inputs (and the tokens, if it likes).
        text: what to run it on; a packaged model's own example when None.
    """
    if model in PACKAGED:
        with packaged.quietly():
            loaded = PACKAGED[model]()
    elif Path(model).is_dir():
        with packaged.quietly():
            loaded = from_folder(Path(model))
    elif ":" in model:
        return _from_function(model, text)
    else:
        raise RegardError(
            f"--model {model!r}: expected {', '.join(PACKAGED)}, a folder that transformers saved, "
            f"or module:function; on a page also {', '.join(FILES)}"
        )
    if text is None:
        text = EXAMPLES.get(model, EXAMPLES["minilm"])[0]
    if not text.strip():
        raise RegardError(f"there is no word in {text!r}")
    encoded = loaded.encode(text)
    runs = loaded.model
    return Subject(loaded.title, lambda: runs(**encoded.inputs), runs, encoded.words)


def looked(model: str, path: Path | None) -> packaged.Looked:
    """What a model of `FILES` did with a file, its own example when None."""
    load, example = FILES[model]
    with packaged.quietly():
        return load().look(example if path is None else path)


def from_folder(place: Path) -> packaged.Packaged:
    """A model and a tokenizer that transformers saved."""
    models = packaged.transformers()
    if not (place / "config.json").exists():
        raise RegardError(
            f"--model {place}: there is no config.json, so transformers did not save it"
        )
    try:
        tokenizer = models.AutoTokenizer.from_pretrained(place, local_files_only=True)
        model = models.AutoModel.from_pretrained(place, local_files_only=True).eval()
    except (OSError, ValueError, KeyError) as error:
        raise RegardError(f"--model {place}: transformers cannot load it: {error}") from error
    if not tokenizer.is_fast:
        raise RegardError(f"--model {place}: its tokenizer is not a fast one, which words need")
    title = place.resolve().name
    if getattr(model.config, "is_encoder_decoder", False):
        model, title = model.get_encoder(), f"{title}, encoder"
    longest = getattr(model.config, "max_position_embeddings", None)
    return packaged.Packaged(title, model, packaged.encoder_for(tokenizer, longest))


def _from_function(name: str, text: str | None) -> Subject:
    """`module:function`, found as Python finds modules, the current folder included."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise RegardError(f"--model {name!r}: expected module:function")
    function = _function(module_name, function_name, name)
    needed = [one.default is one.empty for one in inspect.signature(function).parameters.values()]
    if text is not None and not needed:
        raise RegardError(f"{name} takes no text, but there is one: {text!r:.40}")
    if text is None and any(needed[:1]):
        text = EXAMPLES["minilm"][0]
    found = function() if text is None else function(text)
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise RegardError(f"{name} returned {type(found).__name__}, expected (model, inputs)")
    model, inputs, *rest = found
    if not callable(model):
        raise RegardError(f"{name} returned {type(model).__name__} as the model")
    words = None
    if rest:
        tokens = [str(token) for token in rest[0]]
        words = Words.each(tokens)
    if isinstance(inputs, dict) or hasattr(inputs, "keys"):
        return Subject(name, lambda: model(**inputs), model, words)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    return Subject(name, lambda: model(*inputs), model, words)


def takes_text(name: str) -> bool:
    """Whether `module:function` can be given a text."""
    module_name, _, function_name = name.partition(":")
    return bool(inspect.signature(_function(module_name, function_name, name)).parameters)


def _function(module_name: str, function_name: str, name: str) -> Callable[..., Any]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise RegardError(f"--model {name}: {error}") from error
    finally:
        sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise RegardError(f"--model {name}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]
