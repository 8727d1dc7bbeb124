"""A trained Transformer says the same in regard, CTranslate2 and transformers."""

from pathlib import Path

import ctranslate2
import pytest
import torch
from transformers import MarianMTModel, MarianTokenizer

from regard.translate import Config, SearchOptions, beam_search, export, load_checkpoint, train
from regard.translate.data import padded
from regard.translate.tokens import END

EXAMPLE = Path(__file__).parents[3] / "examples" / "translate"
LONGEST = 60
SETTINGS = (
    "vocabulary.kind=pieces", "vocabulary.source_size=400", "vocabulary.target_size=400",
    "model.name=transformer", "model.hidden=64", "model.embedding=64", "model.layers=2",
    "model.feed_forward=128", "model.norm=post", "training.epochs=12", "training.batch_tokens=800",
    "training.optimiser.rate=2e-3",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_two_hundred_sentences(tmp_path):
    run = train(Config.from_file(EXAMPLE / "small.toml", SETTINGS), tmp_path / "run")
    checkpoint = load_checkpoint(run.folder.best)
    lines = (EXAMPLE / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    texts = sorted({line.split("\t")[0] for line in lines})[:200]
    numbers = [checkpoint.source.encode(text) for text in texts]
    source, mask = padded([[*sentence, END] for sentence in numbers])
    for format in ("ctranslate2", "marian"):
        export(checkpoint, tmp_path / format, format)
    engine = ctranslate2.Translator(str(tmp_path / "ctranslate2"), intra_threads=1)
    marian = MarianMTModel.from_pretrained(tmp_path / "marian").eval()
    inputs = MarianTokenizer.from_pretrained(tmp_path / "marian")(
        texts, return_tensors="pt", padding=True
    )
    assert torch.equal(inputs.input_ids, source)
    for beam in (1, 5):
        options = SearchOptions(beam=beam, length_penalty=0.0, longest=LONGEST)
        ours = [best for (best,) in beam_search(checkpoint.model, source, mask, options)]
        results = engine.translate_batch(
            [checkpoint.source.pieces(sentence) for sentence in numbers],
            beam_size=beam,
            length_penalty=0.0,
            min_decoding_length=0,
            max_decoding_length=LONGEST,
            return_scores=True,
            return_end_token=True,
        )
        for best, result in zip(ours, results):
            assert checkpoint.target.pieces(best.tokens) == result.hypotheses[0]
            assert result.scores[0] == pytest.approx(best.log_probability, abs=0.01)
        generated = marian.generate(
            **inputs,
            num_beams=beam,
            max_length=LONGEST + 1,
            length_penalty=0.0 if beam > 1 else None,
        )
        for best, row in zip(ours, generated.tolist()):
            assert row[1 : len(best.tokens) + 1] == best.tokens
