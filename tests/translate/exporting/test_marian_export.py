"""A Transformer as transformers' Marian runs it: the same texts, tokens and scores."""

import pytest
import torch
from exported_models import ENGLISH, LONGEST, checkpoint, searched, sources
from transformers import MarianMTModel, MarianTokenizer

from regard.translate.exporting import export
from regard.translate.tokens import END

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_the_same_tokens_and_scores(tie, tmp_path):
    exported = checkpoint("post", tie)
    export(exported, tmp_path / "model", "marian")
    model = MarianMTModel.from_pretrained(tmp_path / "model").eval()
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer(ENGLISH, return_tensors="pt", padding=True)
    source, mask = sources(exported)
    assert torch.equal(inputs.input_ids, source)
    assert torch.equal(inputs.attention_mask.bool(), mask)
    for beam in (1, 4):
        generated = model.generate(
            **inputs,
            num_beams=beam,
            num_return_sequences=beam,
            max_length=LONGEST + 1,
            length_penalty=0.0 if beam > 1 else None,
            return_dict_in_generate=True,
            output_scores=True,
        )
        ours = [each for hypotheses in searched(exported, beam) for each in hypotheses]
        for hypothesis, row in zip(ours, generated.sequences.tolist()):
            tokens = row[1:]
            assert tokens[: tokens.index(END) + 1 if END in tokens else None] == hypothesis.tokens
            decoded = tokenizer.decode(row, skip_special_tokens=True)
            assert decoded.strip() == exported.target.decode(hypothesis.tokens).strip()
        if beam > 1:
            scores = torch.tensor([hypothesis.log_probability for hypothesis in ours])
            torch.testing.assert_close(generated.sequences_scores, scores, atol=2e-4, rtol=1e-4)


def test_search_options_are_the_defaults_of_generate(tmp_path):
    export(checkpoint(), tmp_path / "model", "marian")
    model = MarianMTModel.from_pretrained(tmp_path / "model")
    assert model.generation_config.num_beams == 5
    assert model.generation_config.length_penalty == pytest.approx(0.6)
