"""What a translation shows and saves."""

from dataclasses import replace

import pytest
import torch
from text_translators import checkpoint
from text_translators import translator as translator

import regard
from regard.errors import RegardError, UnavailableError
from regard.translate.translator import Translator


def test_what_is_not_drawn_went_to_the_end(translator):
    found = translator("I love you.", shortest=3, longest=6)
    assert found.rows.shape[1] == 5  # four words and the end
    shares = found.matrix.weights.sum(1) + torch.tensor(found.at_the_end)
    torch.testing.assert_close(shares, torch.ones(len(found.matrix.target)))
    without = translator.translate(["I love you."], weights=False)[0][0]
    with pytest.raises(UnavailableError, match="made with weights=False"):
        _ = without.rows


def test_a_picture_has_words_on_both_axes(translator, tmp_path):
    found = translator("I love you.", shortest=3, longest=6)
    drawn = found.plot()
    assert drawn.values is found.matrix.weights and drawn.title == f"I love you. → {found.text}"
    assert (drawn.rows, drawn.columns) == (found.matrix.target, found.matrix.source)
    assert drawn.column_title == f"source without its end; {found.head} ({found.reading})"
    kept = Translator(translator.checkpoint, end="kept")(
        "I love you.", shortest=3, longest=6
    ).plot()
    shown = f"source; {found.head} ({translator.reading})"
    assert (kept.row_title, kept.column_title) == ("translation", shown)
    inner = Translator(checkpoint("encoder-dot"))("I love you.", longest=4).plot()
    assert inner.rows == inner.columns == found.matrix.source and inner.row_title == "source"
    assert inner.column_title == "source without its end; inside the encoder"
    with pytest.raises(UnavailableError, match="no attention from target to source"):
        Translator(checkpoint("none"))("I love you.", longest=4).plot()
    with pytest.raises(UnavailableError, match="the translation is empty, so no word of it"):
        replace(found, matrix=replace(found.matrix, target=[])).plot()


def test_what_is_saved_goes_by_the_name_of_the_file(translator, tmp_path):
    found = translator("I love you.", shortest=3, longest=6)
    assert found.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in found.save(str(tmp_path / "a.svg")).read_text()
    back = regard.load_trace(found.save(tmp_path / "a.safetensors"))
    assert list(back.keys()) == list(found.trace.keys())
    with pytest.raises(
        RegardError, match=r"a.gif: ends in '.gif', expected .html \(a page\), .png"
    ):
        found.save(tmp_path / "a.gif")
    with pytest.raises(RegardError, match=r"save: title: options of a page, but 'b.png' does not"):
        found.save(tmp_path / "b.png", title="Love")
    assert len(list(tmp_path.iterdir())) == 3
