"""How sure a translator is, and texts unlike those it learned from."""

from dataclasses import replace

import pytest
import torch
from text_translators import checkpoint

from regard.errors import RegardError
from regard.translate.confidence import Confidence, Familiarity, confidence_of, extra_entry
from regard.translate.evaluation.scores import chrf_of_each
from regard.translate.translator import Translator


def test_a_confidence_is_what_is_to_be_expected():
    generator = torch.Generator().manual_seed(0)
    means = (-3 * torch.rand(2000, generator=generator)).tolist()
    truth = [1 / (1 + torch.tensor(-2 * mean - 1.5).exp().item()) for mean in means]
    noise = 0.1 * torch.randn(2000, generator=generator)
    fitted = Confidence.fitted(means, [value + each for value, each in zip(truth, noise.tolist())])
    assert [fitted.slope, fitted.offset] == pytest.approx([2, 1.5], abs=0.1)
    assert Confidence(1.0, 0.0).of(-1e9) < 1e-9 and Confidence(1.0, 0.0).of(0) == 0.5
    with pytest.raises(RegardError, match="0 means and 0 qualities"):
        Confidence.fitted([], [])


def test_the_quality_is_chrf():
    assert chrf_of_each(["the cat", "x"], ["the cat", "abc"]) == [1.0, 0.0]


def test_texts_of_rare_tokens_are_unlike_the_others():
    usual = [[4 + (first + step) % 10 for step in range(6)] for first in range(200)]
    known = Familiarity.measured(usual, usual[:50], 40)
    assert not any(map(known.unlike, usual))
    assert known.unlike([30, 31, 32, 33, 34, 35]) and not known.unlike([30, 31])
    assert not known.unlike([4, 5, 6, 7, 8, 30])


def test_translations_say_how_sure_they_are():
    plain = checkpoint()
    assert Translator(plain)("I love you.", longest=4).confidence is None
    for offset, unsure in ((5.0, False), (-5.0, True)):
        sure = Confidence(0.1, offset)
        translator = Translator(replace(plain, extra=extra_entry(sure)))
        assert confidence_of(translator.checkpoint.extra) == sure
        one = translator("I love you.", longest=4)
        mean = one.hypothesis.log_probability / len(one.hypothesis.tokens)
        assert one.confidence == pytest.approx(sure.of(mean))
        assert one.table()["confidence"] == one.confidence
        wanted = (f"the model is unsure of this translation: confidence {one.confidence:.2f}",)
        assert one.remarks == (wanted if unsure else ())
        two = translator("I love you. We sleep.", longest=4)
        low, high = sorted(part.confidence for part in two.parts)
        assert low <= two.confidence <= high


def test_a_text_in_another_language_is_remarked_on():
    plain = checkpoint()
    source = plain.source
    usual = [source.encode(text) for text in ("you love cats", "the small cat sleeps")] * 20
    known = Familiarity.measured(usual, usual, len(source))
    translator = Translator(replace(plain, extra=extra_entry(known)))
    assert translator("you love cats", longest=3).remarks == ()
    (remark,) = translator("ich liebe dich sehr", longest=3).remarks
    assert remark.startswith("unlike what the model learned from") and "ich liebe" in remark
