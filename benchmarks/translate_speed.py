"""Sentences a second, ours beside the Marian architecture of transformers with the same weights.

    python benchmarks/translate_speed.py            # base and small shapes, batch 1 and 64
    python benchmarks/translate_speed.py --quick    # the small shape, under a minute

Both models have the same weights (random), read the same sentences and say the same tokens: this is
checked. As random weights do not know when to end, `END` is given all the probability when a
sentence has its length, in both alike: first all sentences of a batch are equally long, then each
is as long as its source, as translations are. The two take turns, and a ratio is the median of
those of the turns, in processor seconds of one thread, so that other work on the machine matters
little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MarianConfig,
    MarianMTModel,
)

from regard.blocks import DecoderBlock, EncoderBlock, FeedForward, PostNorm, Stack
from regard.mechanisms import MultiHead
from regard.translate.models.contract import EncoderOutput, StepOutput, TranslationModel
from regard.translate.models.embeddings import Embeddings
from regard.translate.models.layout import lay_out_for_search
from regard.translate.models.transformer import Positions, Transformer
from regard.translate.search import SearchOptions, beam_search
from regard.translate.tokens import BEGIN, END, PAD


@dataclass(frozen=True)
class Sizes:
    """The shape of a Transformer: so many layers on each side."""

    name: str
    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int


SMALL = Sizes("3+3 layers, width 256, vocabulary 10k", 3, 256, 8, 1024, 10_000)
BASE = Sizes("6+6 layers, width 512, vocabulary 30k (Marian base)", 6, 512, 8, 2048, 30_000)


def marian(sizes: Sizes) -> MarianMTModel:
    """A Marian model of random weights that never says a special token."""
    config = MarianConfig(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.feed_forward,
        decoder_ffn_dim=sizes.feed_forward,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=BEGIN,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # so that outputs vary with inputs
            if parameter.dim() == 2 and "embed_positions" not in name:
                parameter.normal_(std=sizes.width**-0.5)
            elif "bias" in name:
                parameter.normal_(std=0.1)
        model.final_logits_bias[:, : END + 1] = -1e4
    return model


def ours(sizes: Sizes, theirs: MarianMTModel, plain: bool = False) -> Transformer:
    """Our model with their weights, laid out as `Translator.load` does unless they stay plain."""
    shared = nn.Embedding(sizes.vocabulary, sizes.width)
    model = Transformer(
        Embeddings(shared),
        Positions(sizes.width),
        Stack([_encoder_block(sizes, layer) for layer in theirs.model.encoder.layers]),
        Stack([_decoder_block(sizes, layer) for layer in theirs.model.decoder.layers]),
    )
    with torch.no_grad():
        shared.weight.copy_(theirs.model.shared.weight)
        model.embeddings.bias.copy_(theirs.final_logits_bias[0])
    if not plain:
        lay_out_for_search(model)
    return model.eval()


def _encoder_block(sizes: Sizes, layer: nn.Module) -> EncoderBlock:
    return EncoderBlock(
        _attention(sizes, layer.self_attn, layer.self_attn_layer_norm),
        _feed_forward(sizes, layer),
    )


def _decoder_block(sizes: Sizes, layer: nn.Module) -> DecoderBlock:
    return DecoderBlock(
        _attention(sizes, layer.self_attn, layer.self_attn_layer_norm),
        _attention(sizes, layer.encoder_attn, layer.encoder_attn_layer_norm),
        _feed_forward(sizes, layer),
    )


def _attention(sizes: Sizes, theirs: nn.Module, norm: nn.Module) -> PostNorm:
    part = MultiHead(sizes.width, sizes.heads)
    part.to_query.load_state_dict(theirs.q_proj.state_dict())
    part.to_key.load_state_dict(theirs.k_proj.state_dict())
    part.to_value.load_state_dict(theirs.v_proj.state_dict())
    part.to_output.load_state_dict(theirs.out_proj.state_dict())
    return PostNorm(sizes.width, part, norm=norm)


def _feed_forward(sizes: Sizes, layer: nn.Module) -> PostNorm:
    part = FeedForward(sizes.width, sizes.feed_forward, activation=nn.SiLU())
    part.widen.load_state_dict(layer.fc1.state_dict())
    part.narrow.load_state_dict(layer.fc2.state_dict())
    return PostNorm(sizes.width, part, norm=layer.final_layer_norm)


def sentences(sizes: Sizes, batch: int) -> tuple[Tensor, Tensor]:
    """Sentences of 8 to 20 tokens, as long as captions are."""
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.randint(8, 21, (batch,), generator=generator)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    source = torch.randint(4, sizes.vocabulary, mask.shape, generator=generator)
    return source * mask, mask


class Ending(TranslationModel):
    """A model that ends each sentence when it has a given length."""

    def __init__(self, model: Transformer, lengths: Tensor) -> None:
        super().__init__()
        self.model, self.lengths, self.sites = model, lengths, model.sites

    def encode(self, source: Tensor, mask: Tensor, *, weights: bool = False) -> EncoderOutput:
        return EncoderOutput(mask, (self.model.encode(source, mask), self.lengths))

    def start(self, encoded: EncoderOutput, beams: int = 1) -> Any:
        return self.model.start(encoded.memory[0], beams)

    def step(
        self, encoded: EncoderOutput, state: Any, tokens: Tensor, *, weights: bool = False
    ) -> StepOutput:
        inner, lengths = encoded.memory
        stepped = self.model.step(inner, state, tokens, weights=weights)
        end_rows(stepped.logits, lengths, state[0].keys + 1)
        return stepped

    def decode(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        return self.model.logits(features)


class EndingProcessor(LogitsProcessor):  # type: ignore[misc]
    """The same for Marian."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        end_rows(scores, self.lengths, input_ids.shape[1])
        return scores


def end_rows(scores: Tensor, lengths: Tensor, length: int) -> None:
    """Rows of sentences of this length end with certainty; the others never."""
    rows = (lengths == length).repeat_interleave(len(scores) // len(lengths)).nonzero()[:, 0]
    if len(rows):
        scores[rows] = -torch.inf
        scores[rows, END] = 0.0


def translators(
    sizes: Sizes, batch: int, beam: int, length: int | None, weights: bool, plain: bool = False
) -> tuple[Callable[[], list[list[int]]], Callable[[], list[list[int]]]]:
    """Two functions without arguments, ours and theirs, that translate the same batch."""
    theirs = marian(sizes)
    source, mask = sentences(sizes, batch)
    lengths = mask.sum(1) if length is None else torch.full((batch,), length)
    mine = Ending(ours(sizes, theirs, plain), lengths).eval()
    processors = LogitsProcessorList([EndingProcessor(lengths)])

    def run_ours() -> list[list[int]]:
        options = SearchOptions(beam=beam, longest=100)
        best = beam_search(mine, source, mask, options, weights=weights)
        return [hypotheses[0].tokens for hypotheses in best]

    def run_theirs() -> list[list[int]]:
        generated = theirs.generate(
            input_ids=source,
            attention_mask=mask.long(),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=100,
            logits_processor=processors,
        )
        return [row[1 : row.index(END) + 1] for row in generated.tolist()]

    return run_ours, run_theirs


def seconds(run: Callable[[], object]) -> float:
    """Processor seconds of one run."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def measure(
    sizes: Sizes,
    batch: int,
    beam: int,
    length: int | None,
    turns: int,
    weights: bool,
    plain: bool,
) -> str:
    """One line of the table."""
    run_ours, run_theirs = translators(sizes, batch, beam, length, weights, plain)
    same = sum(a == b for a, b in zip(run_ours(), run_theirs()))
    times = [(seconds(run_ours), seconds(run_theirs)) for _ in range(turns)]
    mine, theirs = (statistics.median(side) for side in zip(*times))
    ratio = statistics.median(b / a for a, b in times)
    return (
        f"batch {batch:>2}  beam {beam}  {batch / mine:>8.1f} ours  {batch / theirs:>8.1f} Marian"
        f"  ratio {ratio:.2f}  same tokens {same}/{batch}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--length", type=int, default=20, help="tokens of every translation")
    parser.add_argument("--weights", action="store_true", help="ours also return their weights")
    parser.add_argument("--plain", action="store_true", help="our weights as they were trained")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [SMALL] if options.quick else [SMALL, BASE]
    turns = 3 if options.quick else options.turns
    print("sentences a processor second, one thread, float32")
    for sizes in shapes:
        for length in (options.length, None):
            held = "as long as their sources" if length is None else f"{length} tokens each"
            print(f"\n{sizes.name}; {held}")
            for batch, beam in ((1, 1), (1, 5), (64, 1), (64, 5)):
                flags = turns, options.weights, options.plain
                print(measure(sizes, batch, beam, length, *flags), flush=True)


if __name__ == "__main__":
    main()
