"""Models that read a corpus, by name, with what turns texts into their inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import regard
from regard.anatomy.modes import evaluation_mode
from regard.cli.models import function_named, is_function, loaded_model
from regard.corpus import Corpus, Example
from regard.errors import RegardError
from regard.heads.passes import run_on
from regard.record import Trace


@dataclass(frozen=True)
class CorpusModel:
    """A model, and the tokenizer of its texts."""

    name: str  #: as it was asked for
    title: str
    model: Any
    tokenizer: Any  #: of transformers, or a function of a text; None where documents are numbers
    longest: int | None  #: most tokens that it reads, where that is known

    @property
    def look(self) -> str:
        """What `regard look --model` calls it; nothing of a function, which gives inputs there."""
        return "" if is_function(self.name) else self.name

    def attention_of(self, settings: Mapping[str, Any]) -> Callable[[Example], Trace]:
        """A function that captures the attention over an example of a run.

        Args:
            settings: of the corpus, from the manifest of the run.
        """
        corpus_options = {name: settings[name] for name in ("column", "max_length")}

        def attention(example: Example) -> Trace:
            document = example.tokens if example.text is None else example.text
            (batch,) = Corpus([document], self.tokenizer, **corpus_options)
            assert batch.tokens is not None
            numbers = batch.tokens[0].tolist()
            tokens = numbers if batch.spelled is None else batch.spelled(numbers)
            if tokens != example.tokens:
                raise RegardError(
                    f"--model {self.name}: document {example.number} has the tokens "
                    f"{_first(tokens)}, in the run they were {_first(example.tokens)}: expected "
                    "the model of the run"
                )
            with (
                evaluation_mode(self.model),
                torch.inference_mode(),
                regard.capture(self.model) as trace,
            ):
                run_on(self.model, dict(batch.inputs))
            return trace.with_tokens([str(token) for token in tokens])

        return attention


def corpus_model(name: str) -> CorpusModel:
    """The model that an option or a configuration names.

    Args:
        name: a packaged model's short name, a folder saved by transformers, or `module:function`,
            which returns a model, or a model and its tokenizer.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    if is_function(name):
        returned = function_named(name)()
        model, tokenizer = returned if isinstance(returned, tuple) else (returned, None)
        if not callable(model):
            raise RegardError(f"{name} returned {type(model).__name__} as the model")
        return CorpusModel(name, name, model, tokenizer, _longest(tokenizer))
    loaded = loaded_model(name)
    if loaded.tokenizer is None:
        raise RegardError(
            f"--model {name}: its texts become inputs in a way of its own, which a corpus cannot "
            "use; expected minilm, smollm2, a folder saved by transformers, or module:function"
        )
    return CorpusModel(
        name, loaded.title, loaded.model, loaded.tokenizer, _longest(loaded.tokenizer)
    )


def _longest(tokenizer: Any) -> int | None:
    """Most tokens that its model reads; transformers writes 1e30 where it does not know."""
    longest = getattr(tokenizer, "model_max_length", None)
    return longest if isinstance(longest, int) and longest < 1 << 30 else None


def _first(tokens: Any) -> str:
    return f"{list(tokens or [])!r:.60}"
