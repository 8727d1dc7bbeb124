"""`regard translate`: lines that stream, wide beams, the reading that is explained."""

from translate_command import models as models
from translate_command import run as run

from regard.translate.alignment import read_links
from regard.translate.translator import Translator


def test_lines_come_while_others_wait_and_keep_no_weights(run, monkeypatch):
    """Only links need weights; the windows of a stream are not held together."""
    asked = []
    stream = Translator.stream

    def watched(self, texts, **options):
        asked.append(options["weights"])
        return stream(self, texts, window=1, **options)

    monkeypatch.setattr(Translator, "stream", watched)
    lines = b"I love you.\n\nyou love cats\n"
    _, said, _ = run(given=lines)
    assert len(said.splitlines()) == 3
    code, again, _ = run("--pharaoh", "links.txt", given=lines)
    assert (code, again) == (0, said) and asked == [False, True]
    assert len(read_links("links.txt")) == 3


def test_a_beam_that_no_machine_holds_is_refused(run):
    code, _, told = run("I love you.", "--beam", 1_000_000)
    assert code == 2 and "1000" in told and "--beam" in told


def test_the_reading_of_a_transformer_is_explained(run):
    _, said, _ = run("I love you.", "--longest", 5, model="transformer")
    assert "--reading output shows the step before" in " ".join(said.split())
    _, said, _ = run("I love you.", "--reading", "output", "--longest", 5, model="transformer")
    assert "--reading" not in said
    _, said, _ = run("I love you.", "--longest", 5)
    assert "--reading" not in said


def test_samples_are_drawn_and_reproducible(run):
    options = ("--sample", "--n-best", 7, "--temperature", 2, "--longest", 5)
    code, said, _ = run(*options, given=b"I love you.")
    lines = said.splitlines()
    assert code == 0 and len(lines) == 7 and len(set(lines)) > 1
    assert run(*options, given=b"I love you.")[1] == said
    assert run(*options, "--seed", 1, given=b"I love you.")[1] != said


def test_several_models_are_an_ensemble(run, models):
    one, other = (models / f"{name}.safetensors" for name in ("bahdanau", "transformer"))
    code, said, told = run(
        "I love you.", "--model", one, "--model", other, "--longest", 4, model=""
    )
    assert (code, told) == (0, "") and "ensemble, head 0 (output)" in " ".join(said.split())


def test_models_of_other_vocabularies_are_no_ensemble(run, models):
    code, _, told = run("I love you.", "--model", models / "pieces.safetensors")
    assert code == 1 and "vocabulary of checkpoint 2" in told and "expected the same" in told
