"""`regard align` on small files, and on checkpoints that were not trained."""

import shutil

import pytest
import torch
import typer
from typer.testing import CliRunner

from regard.cli.align import align
from regard.errors import RegardError
from regard.translate.alignment import (
    Head,
    Sentence,
    by_agreement,
    by_error,
    force,
    read_links,
)
from regard.translate.alignment.heads import save_preferred_head
from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.translator import Translator
from regard.translate.vocabulary import WordVocabulary

PAIRS = [("the cat sleeps", "le chat dort"), ("a dog", "un chien"), ("yes sir", "oui monsieur !")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences, gold links from 1, and models of both directions and of other kinds."""
    place = tmp_path_factory.mktemp("align")
    sides = [list(side) for side in zip(*PAIRS)]
    for name, side in zip(("en", "fr"), sides):
        (place / name).write_text("\n".join(side) + "\n", encoding="utf-8")
    (place / "gold").write_text("1-1 2-2 3-3\n1-1 2-2\n1-1 2p2\n")
    english, french = (WordVocabulary.train(side, size=20) for side in sides)
    sizes = {"embedding": 8, "hidden": 8, "layers": 2}
    inner = {"heads": 2, "feed_forward": 8}
    for name, seed, kind, source, target in (
        ("there", 0, "transformer", english, french),
        ("back", 1, "transformer", french, english),
        ("recurrent", 2, "luong-general", english, french),
        ("none", 3, "none", english, french),
    ):
        torch.manual_seed(seed)
        config = ModelConfig(kind, **sizes, **(inner if kind == "transformer" else {}))
        model = build_model(config, len(source), len(target))
        saved = Checkpoint(Config(model=config), source, target, model)
        save_checkpoint(place / f"{name}.safetensors", saved)
    return place


def run(*arguments):
    """The command alone; an error of regard comes through."""
    app = typer.Typer()
    app.command()(align)
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def texts(folder):
    return "--source", folder / "en", "--target", folder / "fr"


def seen(folder, name, reading):
    loaded = load_checkpoint(folder / f"{name}.safetensors")
    sources, targets = zip(*PAIRS)
    return force(
        loaded.model,
        [Sentence.spaced(text, loaded.source) for text in sources],
        [Sentence.spaced(text, loaded.target) for text in targets],
    ).heads(reading)


def test_links_of_a_file_are_scored(folder, tmp_path):
    (tmp_path / "links").write_text("0-0 1-1 2-1\n0-0\n0-0 1-1 1-2\n")
    result = run("--links", tmp_path / "links", "--gold", folder / "gold", "--gold-first", 1)
    # 7 links, 6 sure; 4 of the links are sure, 5 possible: 1 - 9/13
    assert result.stdout.startswith("alignment error rate 30.77 %, precision 71.43 %, recall 66.67")
    assert result.stderr == ""


def test_gold_that_seems_to_count_from_one_is_remarked_on(folder):
    result = run("--links", folder / "gold", "--gold", folder / "gold")
    assert "no link of" in result.stderr and "say --gold-first 1" in result.stderr


@pytest.mark.parametrize(("name", "reading"), [("there", "input"), ("recurrent", "output")])
def test_a_named_head_is_read_as_is_usual_for_its_model(folder, name, reading):
    head = seen(folder, name, reading).heads[0]
    result = run(folder / f"{name}.safetensors", *texts(folder), "--head", f"{head.site}:0")
    expected = seen(folder, name, reading).links(head)
    lines = [" ".join(f"{s}-{t}" for s, t in sorted(links)) for links in expected]
    assert result.stdout.splitlines() == lines
    assert f"reading {head} ({reading}): as was asked" in result.stderr


def test_gold_chooses_the_head_and_is_scored(folder, tmp_path):
    out = tmp_path / "links"
    arguments = ["--gold", folder / "gold", "--gold-first", 1, "--out", out, "--first", 1]
    result = run(folder / "there.safetensors", *texts(folder), *arguments)
    assert "least alignment error" in result.stderr
    assert result.stdout.startswith("alignment error rate ")
    assert len(read_links(out, first=1)) == 3


def test_two_directions_agree_or_are_named(folder):
    both = [folder / "there.safetensors", *texts(folder), "--backward", folder / "back.safetensors"]
    assert "most agreement of both directions" in run(*both).stderr
    either = run(*both, "--symmetrise", "union").stdout.splitlines()
    grown = run(*both).stdout.splitlines()
    for small, large in zip(grown, either):
        assert set(small.split()) <= set(large.split())
    asked = run(*both, "--head", "1.cross", "--backward-head", "0.cross:1").stderr
    assert "reading 1.cross, mean of heads (input), and of the other direction 0.cross, head 1" in (
        asked
    )
    half = run(*both, "--head", "1.cross:1").stderr
    assert half.startswith("reading 1.cross, head 1 (input), and") and "most agreement" in half


def test_heads_that_were_chosen_are_remembered(folder, tmp_path):
    for name in ("there", "back"):
        shutil.copy(folder / f"{name}.safetensors", tmp_path)
    there, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    before = there.read_bytes()
    run(there, *texts(folder), "--head", "1.cross:1")
    assert there.read_bytes() == before, "only when asked"
    told = run(there, *texts(folder), "--head", "1.cross:1", "--remember").stderr
    assert f"remembered in {there}: 1.cross, head 1 (input)\n" in told
    found = Translator.load(there)
    assert (found.head, found.reading) == (Head("1.cross", 1), "input")
    both = [there, *texts(folder), "--backward", back, "--backward-head", "0.cross:0"]
    told = run(*both, "--head", "0.cross", "--reading", "output", "--remember").stderr
    assert f"remembered in {there}: 0.cross, mean of heads (output)\n" in told
    assert f"remembered in {back}: 0.cross, head 0 (output)\n" in told
    assert Translator.load(there).head == Head("0.cross", None)
    found = Translator.load(back)
    assert (found.head, found.reading) == (Head("0.cross", 0), "output")
    gold = ["--gold", folder / "gold", "--gold-first", 1, "--remember"]
    told = run(there, *texts(folder), *gold).stderr
    assert f"reading {Translator.load(there).head} (input): least" in told


def test_the_only_head_of_a_site_goes_by_its_name(folder):
    one = [folder / "recurrent.safetensors", *texts(folder), "--head"]
    assert run(*one, "cross").stdout == run(*one, "cross:0").stdout


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("1-1 2-4", "wrong:3: the link 2-4 has a word 4, but .*fr:3 has 3 words, 1 to 3"),
        ("3p3 1-1", "wrong:3: the link 3-3 has a word 3, but .*en:3 has 2 words, 1 to 2"),
    ],
)
def test_gold_links_outside_the_sentences_are_refused(folder, tmp_path, written, wanted):
    options = [folder / "there.safetensors", *texts(folder), "--gold-first", 1, "--gold"]
    (tmp_path / "right").write_text("1-1 2-2 3-3\n1-1\n1-1 2p3\n")
    assert run(*options, tmp_path / "right").stdout
    (tmp_path / "wrong").write_text(f"1-1\n1-1 2-2\n{written}\n")
    with pytest.raises(RegardError, match=wanted):
        run(*options, tmp_path / "wrong")


def test_files_without_sentences_or_links_are_refused(folder, tmp_path):
    empty, blank, gold = (tmp_path / name for name in ("empty", "blank", "gold"))
    empty.write_text("")
    blank.write_text("\n\n")
    gold.write_text("0-0\n0-0\n")
    for options, message in (
        ([folder / "there.safetensors", "--source", empty, "--target", empty],
         r"empty and .*empty have no lines, expected sentences to align"),
        (["--links", empty, "--gold", gold], r"empty has no lines, expected links, one line per"),
        (["--links", empty, "--gold", empty], r"empty has no lines, expected links"),
        (["--links", gold, "--gold", empty], r"empty has 0 lines and no link, expected gold"),
        (["--links", gold, "--gold", blank], r"blank has 2 lines and no link, expected gold"),
    ):  # fmt: skip
        with pytest.raises(RegardError, match=message):
            run(*options)
    assert "recall 0.00 %" in run("--links", blank, "--gold", gold).stdout


@pytest.mark.parametrize(
    "option",
    ["--source en", "--target fr", "--backward b", "--head 3", "--backward-head 3",
     "--reading input", "--rule mutual", "--symmetrise union", "--remember", "--out links"],
)  # fmt: skip
def test_what_links_that_are_there_do_not_need_is_refused(folder, option):
    scored = ["--links", folder / "gold", "--gold", folder / "gold", "--gold-first", 1]
    with pytest.raises(RegardError, match=f"it does not go with {option}"):
        run(*scored, *option.split())


def test_rules(folder):
    one = [folder / "recurrent.safetensors", *texts(folder)]
    assert all(run(*one, "--rule", "0.01").stdout.splitlines())
    strongest, mutual = (run(*one, "--rule", rule).stdout for rule in ("strongest", "mutual"))
    assert len(strongest.split()) == 8 and set(mutual.split()) <= set(strongest.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "align needs a checkpoint, --source and --target"),
        (["--links", "gold"], "--links scores a file of links: say --gold, and no checkpoint"),
        (["there", "texts", "--head", "9.cross:0"], "--head 9.cross:0, expected one of 0.cross:0"),
        (["there", "texts", "--rule", "best"], "--rule best, expected strongest, mutual or a num"),
        (["there", "texts", "--rule", "3"], "--rule 3, expected strongest, mutual or a number"),
        (["there", "texts", "--first", "2"], "--first 2, expected one of 0, 1"),
        (["there", "texts", "--symmetrise", "all"], "--symmetrise all, expected one of intersect"),
        (
            ["there", "texts", "--backward-head", "0.cross"],
            "--backward-head 0.cross has no effect without --backward",
        ),
        (
            ["there", "texts", "--symmetrise", "grow-diag"],
            "--symmetrise grow-diag has no effect",
        ),
        (["there", "texts", "--gold-first", "0"], "--gold-first 0 has no effect without --gold"),
        (
            ["english-french", "texts", "--remember"],
            "--remember: english-french ships with regard, expected a file of your own",
        ),
        (
            ["there", "texts", "--backward", "there", "--backward-head", "foo"],
            "--backward-head foo, expected one of 0.cross:0",
        ),
        (["none", "texts"], "has no attention from target to source, so nothing to align by"),
        (["there", "texts", "--gold", "short"], "short has 1 lines, but .*en has 3"),
    ],
)
def test_what_cannot_be_done_is_said(folder, options, message):
    (folder / "short").write_text("0-0\n")
    arguments = []
    for option in options:
        if option == "texts":
            arguments += texts(folder)
        elif option in ("there", "none"):
            arguments.append(folder / f"{option}.safetensors")
        else:
            arguments.append(folder / option if option in ("gold", "short") else option)
    with pytest.raises(RegardError, match=message):
        run(*arguments)


def test_a_folder_that_is_not_there_is_named_before_any_work(folder, tmp_path):
    out = tmp_path / "none" / "links"
    with pytest.raises(RegardError, match=f"{out}: there is no folder {out.parent}"):
        run("no model", *texts(folder), "--out", out)
    with pytest.raises(RegardError, match=f"{tmp_path} is a folder, expected the name of a file"):
        run("no model", *texts(folder), "--out", tmp_path)


def test_an_unknown_reading_is_refused(folder):
    with pytest.raises(RegardError, match="--reading shifted, expected one of output, input"):
        run(folder / "there.safetensors", *texts(folder), "--reading", "shifted")


def test_files_that_are_swapped_are_remarked_on(folder):
    model = folder / "recurrent.safetensors"
    right = run(model, *texts(folder))
    assert "does not know" not in right.stderr
    swapped = run(model, "--source", folder / "fr", "--target", folder / "en")
    assert len(swapped.stdout.splitlines()) == 3
    told = f"{model} does not know 100 % of the words of {folder / 'fr'} and 100 % of the words of"
    assert f"regard: {told} {folder / 'en'}; are the files the right way" in swapped.stderr
    both = run(
        folder / "there.safetensors", *texts(folder), "--backward", folder / "there.safetensors"
    )
    assert both.stderr.count("does not know") == 1, "the other direction alone is strange"
    same = run(model, "--source", folder / "en", "--target", folder / "en")
    assert f"0 % of the words of {folder / 'en'} and 100 % of" in same.stderr


def test_what_is_remembered_is_read(folder, tmp_path):
    path = tmp_path / "own.safetensors"
    shutil.copy(folder / "there.safetensors", path)
    asked = ("--head", "1.cross:1", "--reading", "output")
    first = run(path, *texts(folder), *asked, "--remember")
    again = run(path, *texts(folder))
    assert "reading 1.cross, head 1 (output): as the checkpoint remembers" in again.stderr
    assert again.stdout == first.stdout
    usual = run(folder / "there.safetensors", *texts(folder))
    assert usual.stdout != again.stdout and "the usual one" in usual.stderr
    gold = run(path, *texts(folder), "--gold", folder / "gold", "--gold-first", 1)
    assert "least alignment error" in gold.stderr
    save_preferred_head(path, Head("7.cross", 1), "output")
    with pytest.raises(RegardError, match=r"head that the checkpoint remembers, 7\.cross:1, ex"):
        run(path, *texts(folder))


def errors(folder, name, reading):
    """The error of the best head in a reading."""
    return by_error(seen(folder, name, reading), read_links(folder / "gold", first=1))[0].error


def test_gold_chooses_the_reading_too(folder):
    """A model that is better in the other reading than its own is read so."""
    for name in ("there", "recurrent"):
        result = run(
            folder / f"{name}.safetensors", *texts(folder), "--gold", folder / "gold",
            "--gold-first", 1,
        )  # fmt: skip
        found = {reading: errors(folder, name, reading) for reading in ("input", "output")}
        least = min(found.values(), key=lambda one: one.error)
        assert str(least) in result.stderr
        for reading, one in found.items():
            if one.error > least.error:
                said = run(
                    folder / f"{name}.safetensors", *texts(folder), "--gold", folder / "gold",
                    "--gold-first", 1, "--reading", reading,
                )  # fmt: skip
                assert str(one) in said.stderr and f"({reading})" in said.stderr


def test_agreement_chooses_the_readings_too(folder):
    result = run(
        folder / "there.safetensors", *texts(folder), "--backward", folder / "back.safetensors"
    )
    flipped_pairs = [pair[::-1] for pair in PAIRS]
    loaded = load_checkpoint(folder / "back.safetensors")
    sources, targets = zip(*flipped_pairs)
    back = force(
        loaded.model,
        [Sentence.spaced(text, loaded.source) for text in sources],
        [Sentence.spaced(text, loaded.target) for text in targets],
    )
    most = max(
        by_agreement(seen(folder, "there", one), back.heads(other))[0].agreement
        for one in ("input", "output")
        for other in ("input", "output")
    )
    assert f"most agreement of both directions, {100 * most:.1f} %" in result.stderr
