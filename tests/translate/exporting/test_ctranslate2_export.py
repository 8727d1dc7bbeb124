"""A Transformer as CTranslate2 runs it: the same tokens, scores and attention."""

import ctranslate2
import pytest
import torch
from exported_models import ENGLISH, LONGEST, checkpoint, searched

from regard.translate.exporting import export
from regard.translate.vocabulary import PieceVocabulary, WordVocabulary


def translated(folder, checkpoint, beam):
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    texts = [checkpoint.source.pieces(checkpoint.source.encode(text)) for text in ENGLISH]
    return translator.translate_batch(
        texts,
        beam_size=beam,
        num_hypotheses=beam,
        length_penalty=0.0,
        min_decoding_length=0,  # 1 takes the end out of the first softmax
        max_decoding_length=LONGEST,
        return_scores=True,
        return_end_token=True,
        return_attention=True,
    )


@pytest.mark.parametrize(
    ("norm", "tie", "kind"),
    [
        ("pre", "none", PieceVocabulary),
        ("pre", "all", WordVocabulary),
        ("post", "none", WordVocabulary),
        ("post", "target", PieceVocabulary),
        ("post", "all", PieceVocabulary),
    ],
)
def test_the_same_tokens_and_scores(norm, tie, kind, tmp_path):
    exported = checkpoint(norm, tie, kind)
    export(exported, tmp_path / "model", "ctranslate2")
    for beam in (1, 4):
        theirs = translated(tmp_path / "model", exported, beam)
        for hypotheses, result in zip(searched(exported, beam), theirs):
            ours = [exported.target.pieces(hypothesis.tokens) for hypothesis in hypotheses]
            assert ours == result.hypotheses
            scores = [hypothesis.log_probability for hypothesis in hypotheses]
            assert result.scores == pytest.approx(scores, abs=2e-4)


def test_attention_is_of_the_layer_that_our_matrices_show(tmp_path):
    exported = checkpoint()
    export(exported, tmp_path / "model", "ctranslate2")
    theirs = translated(tmp_path / "model", exported, 1)
    for (hypothesis,), result in zip(searched(exported, 1), theirs):
        attention = torch.tensor(result.attention[0])  # (target, source)
        ours = hypothesis.weights["0.cross"].mean(0)[:, : attention.shape[1]]
        torch.testing.assert_close(ours, attention, atol=1e-5, rtol=1e-4)


def test_the_sentencepiece_models_lie_beside_it(tmp_path):
    exported = checkpoint()
    export(exported, tmp_path / "model", "ctranslate2")
    for side in ("source", "target"):
        stored = (tmp_path / "model" / f"{side}.spm").read_bytes()
        assert stored == getattr(exported, side).model
