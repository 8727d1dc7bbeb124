"""The weights that the trainings of the shipped translators begin with, out of the one before.

    python experiments/translate/tatoeba_start.py CHECKPOINT OUT

CHECKPOINT is a recurrent translator with one vocabulary for both languages, `english-french` for
the one that ships. OUT has its weights, a piece for every printable character of Latin scripts, and
an aligner, whose context has no effect yet. Both directions begin with it: embeddings and output
layer know both languages.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.translate.models.build import build_model
from regard.translate.vocabulary import PieceVocabulary

_MORE = "–—‘’“”…‹›€™"


def with_characters(vocabulary: PieceVocabulary) -> PieceVocabulary:
    """With a piece for every printable character of Latin scripts, which bytes spelt before.

    What had pieces is cut as before: a new piece is tried only for its own character.
    """
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(vocabulary.model)
    known = {piece.piece for piece in model.pieces}
    least = min(piece.score for piece in model.pieces)
    for character in [*map(chr, range(33, 0x180)), *_MORE]:
        if character.isprintable() and character not in known:
            model.pieces.add(piece=character, score=least)
    model.trainer_spec.vocab_size = len(model.pieces)
    return PieceVocabulary(model.SerializeToString(), lower=vocabulary.lower)


def grown(
    weights: dict[str, Tensor],
    fresh: dict[str, Tensor],
    before: PieceVocabulary,
    now: PieceVocabulary,
) -> dict[str, Tensor]:
    """The weights of a model with more pieces and an aligner, which answers as before.

    A new piece begins as the mean of the bytes that spelt it. In `readout` the aligner's context
    stands between that of the attention and the state, with weights of 0.
    """
    result = dict(fresh)
    for name, tensor in weights.items():
        if name == "decoder.readout.linear.weight":
            width = fresh[name].shape[1] - tensor.shape[1]
            context, state = tensor.split([width, tensor.shape[1] - width], dim=1)
            result[name] = torch.cat([context, torch.zeros_like(context), state], dim=1)
        else:
            result[name] = tensor
    for name in ("embeddings.target.weight", "embeddings.bias"):
        rows = [
            weights[name][[n for n in before.encode(piece) if not _space(before, n)]].mean(0)
            for piece in now.pieces(range(len(before), len(now)))
        ]
        result[name] = torch.cat([weights[name], torch.stack(rows)])
    result["decoder.aligner.mechanism.score.to_key.weight"] = weights[
        "decoder.look.mechanism.score.to_key.weight"
    ].clone()
    return result


def _space(vocabulary: PieceVocabulary, number: int) -> bool:
    return vocabulary.pieces([number]) == ["▁"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    before = load_checkpoint(options.checkpoint)
    assert isinstance(before.source, PieceVocabulary) and before.source is before.target
    vocabulary = with_characters(before.source)
    config = replace(
        before.config.without_paths(), model=replace(before.config.model, aligner=True)
    )
    torch.manual_seed(0)
    model = build_model(config.model, len(vocabulary), len(vocabulary))
    weights = grown(before.model.state_dict(), model.state_dict(), before.source, vocabulary)
    model.load_state_dict(weights)
    save_checkpoint(options.out, Checkpoint(config, vocabulary, vocabulary, model))
    print(f"{options.out}: {len(before.source)} pieces before, {len(vocabulary)} now")


if __name__ == "__main__":
    main()
