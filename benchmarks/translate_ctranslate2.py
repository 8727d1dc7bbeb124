"""Sentences a second, ours beside CTranslate2 with the same weights, both in float32.

    python benchmarks/translate_ctranslate2.py            # two shapes, batch 1 and 64
    python benchmarks/translate_ctranslate2.py --quick    # the small shape, batch 64

A Transformer of random weights is exported by `regard.translate.export`. Both read the same
sentences of 8 to 20 tokens and say the same tokens, so many for each, as random weights do not know
when to end. They take turns; a ratio is the median of those of the turns, in processor seconds of
one thread, so that other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import torch

from regard.translate import Checkpoint, Config, ModelConfig, build_model, export
from regard.translate.data import padded
from regard.translate.models.layout import lay_out_for_search
from regard.translate.search import SearchOptions, beam_search
from regard.translate.tokens import END
from regard.translate.vocabulary import WordVocabulary

SHAPES = {
    "3+3 layers, width 256, vocabulary 10k": (3, 256, 8, 1024, 10_000),
    "6+6 layers, width 512, vocabulary 30k": (6, 512, 8, 2048, 30_000),
}
BAR = 0.75


def random_checkpoint(layers: int, width: int, heads: int, inner: int, words: int) -> Checkpoint:
    """A Transformer of random weights that never ends a sentence by itself."""
    sentences = [
        " ".join(f"w{n}" for n in range(start, start + 10)) for start in range(0, words, 10)
    ]
    vocabulary = WordVocabulary.train(sentences, size=words)
    config = ModelConfig(
        "transformer", hidden=width, layers=layers, heads=heads, feed_forward=inner,
        norm="post", tie="all",
    )  # fmt: skip
    torch.manual_seed(0)
    model = build_model(config, len(vocabulary), len(vocabulary)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that outputs vary with inputs
            if parameter.dim() == 2:
                parameter.normal_(std=width**-0.5)
        model.embeddings.bias[: END + 2] = -1e4  # nor the unknown word
    return Checkpoint(Config(model=config), vocabulary, vocabulary, model)


def translators(
    checkpoint: Checkpoint, engine: ctranslate2.Translator, batch: int, beam: int, length: int
) -> tuple[Callable[[], list[list[str]]], Callable[[], list[list[str]]]]:
    """Two functions without arguments, ours and theirs, that translate the same batch."""
    generator = torch.Generator().manual_seed(batch)
    sizes = torch.randint(8, 21, (batch,), generator=generator).tolist()
    rows = [
        torch.randint(4, len(checkpoint.source), (size,), generator=generator).tolist()
        for size in sizes
    ]
    source, mask = padded([[*row, END] for row in rows])
    pieces = [checkpoint.source.pieces(row) for row in rows]

    def run_ours() -> list[list[str]]:
        options = SearchOptions(beam=beam, longest=length, length_penalty=0.0)
        best = beam_search(checkpoint.model, source, mask, options, weights=False)
        return [checkpoint.target.pieces(hypotheses[0].tokens) for hypotheses in best]

    def run_theirs() -> list[list[str]]:
        results = engine.translate_batch(
            pieces, beam_size=beam, length_penalty=0.0, max_batch_size=batch,
            min_decoding_length=length, max_decoding_length=length,
        )  # fmt: skip
        return [result.hypotheses[0] for result in results]

    return run_ours, run_theirs


def seconds(run: Callable[[], object]) -> float:
    """Processor seconds of one run."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--length", type=int, default=20, help="tokens of every translation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"sentences a processor second, one thread, float32; bar {BAR} of CTranslate2")
    for name, shape in list(SHAPES.items())[: 1 if options.quick else None]:
        checkpoint = random_checkpoint(*shape)
        with tempfile.TemporaryDirectory() as folder:
            export(checkpoint, Path(folder) / "model", "ctranslate2")
            engine = ctranslate2.Translator(
                str(Path(folder) / "model"),
                compute_type="float32",
                inter_threads=1,
                intra_threads=1,
            )
            lay_out_for_search(checkpoint.model)
            print(f"\n{name}; {options.length} tokens each")
            for batch, beam in (
                ((64, 1), (64, 5)) if options.quick else ((1, 1), (1, 5), (64, 1), (64, 5))
            ):
                run_ours, run_theirs = translators(checkpoint, engine, batch, beam, options.length)
                same = sum(a == b for a, b in zip(run_ours(), run_theirs()))
                times = [(seconds(run_ours), seconds(run_theirs)) for _ in range(options.turns)]
                mine, theirs = (statistics.median(side) for side in zip(*times))
                ratio = statistics.median(b / a for a, b in times)
                print(
                    f"batch {batch:>2}  beam {beam}  {batch / mine:>8.1f} ours  "
                    f"{batch / theirs:>8.1f} CTranslate2  ratio {ratio:.2f}  "
                    f"same tokens {same}/{batch}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
