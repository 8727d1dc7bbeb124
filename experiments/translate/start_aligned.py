"""A Transformer that looks at words like the one it is given, before it has learned anything.

    python experiments/translate/start_aligned.py CONFIG VECTORS OUT.safetensors

CONFIG is a training's; VECTORS the folder that `bilingual_vectors.py` wrote. In every attention to
the source, the projection of the keys begins as that of the queries: what has a like vector has a
high score, and with vectors of both languages in one space that is a word's translation. The
training then begins with OUT, as its `training.start`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from regard.translate.checkpoint import Checkpoint, save_checkpoint
from regard.translate.config import Config, VectorsConfig
from regard.translate.models.build import build_model
from regard.translate.models.transformer import Transformer
from regard.translate.training.corpus import read_data, train_vocabularies
from regard.translate.training.setup import put_vectors


@torch.no_grad()
def look_at_the_like(model: Transformer) -> None:
    """Give keys the projection of the queries, in every attention of the decoder to the source."""
    for block in model.decoder.layers:
        part = block.cross_attention.part
        part.to_key.load_state_dict(part.to_query.state_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    config = Config.from_file(given.config, ["training.start="])
    vocabularies = train_vocabularies(config.vocabulary, read_data(config.data).train)
    torch.manual_seed(config.training.seed)
    model = build_model(config.model, len(vocabularies.source), len(vocabularies.target))
    assert isinstance(model, Transformer)
    files = VectorsConfig(str(given.vectors / "source.txt"), str(given.vectors / "target.txt"))
    for report in put_vectors(files, vocabularies, model):
        print(report)
    look_at_the_like(model)
    checkpoint = Checkpoint(config, vocabularies.source, vocabularies.target, model)
    save_checkpoint(given.out, checkpoint)


if __name__ == "__main__":
    main()
