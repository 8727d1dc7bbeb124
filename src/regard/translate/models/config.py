"""Which translation model, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import RegardError


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and its sizes. A model refuses settings that it does not have.

    | field            | meaning                                                                   |
    |------------------|---------------------------------------------------------------------------|
    | `name`           | one of `build.names()`                                                    |
    | `embedding`      | features of an embedded token                                             |
    | `hidden`         | features of a recurrent state per direction; the width of a Transformer   |
    | `layers`         | layers of the encoder and of the decoder                                  |
    | `cell`           | "gru" or "lstm"                                                           |
    | `bidirectional`  | bidirectional recurrent encoder                                           |
    | `input_feeding`  | Luong's: the last attentional state is added to the next input            |
    | `aligner`        | a second attention, in which a word finds its source: see guidance        |
    | `dropout`        | of embeddings, between layers, before the output layer                    |
    | `heads`          | heads of a Transformer                                                    |
    | `feed_forward`   | inner width of a Transformer's feed-forward layers                        |
    | `tie`            | "none"; "target": output layer and target embedding; "all": the source's  |
    | `longest`        | maximum number of source words, without the end, for `tutorial`           |
    | `norm`           | "pre" or "post", of a Transformer                                         |
    | `reverse_source` | read the source from right to left (one direction only)                   |
    """

    name: str = "bahdanau"
    embedding: int = 300
    hidden: int = 500
    layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = True
    input_feeding: bool = False
    aligner: bool = False
    dropout: float = 0.1
    heads: int = 4
    feed_forward: int = 1024
    tie: Literal["none", "target", "all"] = "none"
    longest: int = 100
    norm: Literal["pre", "post"] = "pre"
    reverse_source: bool = False

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden", "layers", "heads", "feed_forward", "longest"):
            if getattr(self, name) < 1:
                raise RegardError(f"model.{name} is {getattr(self, name)}, expected at least 1")
        if not 0.0 <= self.dropout < 1.0:
            raise RegardError(f"model.dropout is {self.dropout}, expected from 0 to below 1")
        for name, choices in (
            ("cell", ("gru", "lstm")),
            ("tie", ("none", "target", "all")),
            ("norm", ("pre", "post")),
        ):
            if getattr(self, name) not in choices:
                value, expected = getattr(self, name), " or ".join(map(repr, choices))
                raise RegardError(f"model.{name} is {value!r}, expected {expected}")
