"""Word vectors of files in the embeddings of a model, before its first step."""

from __future__ import annotations

from torch import nn

from regard.errors import ShapeError
from regard.translate.config import VectorsConfig
from regard.translate.models.contract import TranslationModel
from regard.translate.training.corpus import Vocabularies
from regard.translate.vectors import VectorReport, load_vectors
from regard.translate.vocabulary import WordVocabulary


def put_vectors(
    config: VectorsConfig, vocabularies: Vocabularies, model: TranslationModel
) -> list[VectorReport]:
    """Put the vectors of the files that a configuration names into a model; says what was found."""
    reports = []
    for side, file in config.files.items():
        vocabulary = getattr(vocabularies, side)
        assert isinstance(vocabulary, WordVocabulary)  # `Config` refuses others
        try:
            reports.append(load_vectors(file, vocabulary, _embedding(model, side)))
        except ShapeError as error:
            raise ShapeError(
                f"vectors.{side}: {error}; model.embedding (a Transformer's model.hidden) says how "
                "wide it is"
            ) from error
    return reports


def freeze_vectors(config: VectorsConfig, model: TranslationModel) -> None:
    """Keep training from the embeddings that have vectors of a file, where it shall not."""
    for side in config.files:
        _embedding(model, side).weight.requires_grad_(not config.frozen)


def _embedding(model: TranslationModel, side: str) -> nn.Embedding:
    found: nn.Embedding = getattr(model.embeddings, side)
    return found
