"""`regard translate`: one text or many lines, with pictures, pages and links; errors."""

import gzip
import io
import json
import sys

import pytest
import torch
from translate_command import ENGLISH
from translate_command import models as models
from translate_command import run as run

from regard.translate import translator as translator_module
from regard.translate.alignment import read_links
from regard.translate.translator import Translator


@pytest.fixture
def translator(models):
    return Translator.load(models / "bahdanau.safetensors")


def texts_of(translator, lines):
    return [found[0].text for found in translator.translate(lines)]


def test_one_text_with_its_matrix(run, translator):
    code, said, _ = run("I love you.")
    found = translator("I love you.")
    assert code == 0 and said.splitlines()[0].strip() == found.text
    assert "each row: what its word looked at, in percent" in said and "cross" in said
    for word in (*found.matrix.source, *found.matrix.target):
        assert word in said


def test_several_translations_of_one_text_have_scores(run, translator):
    code, said, _ = run("we don't sleep", "--n-best", 3)
    found = translator.translate(["we don't sleep"], n_best=3)[0]
    assert code == 0 and len(found) == 3
    for line, one in zip(said.splitlines(), found):
        assert line.strip() == f"{one.text}   {one.score:.2f}"
    assert "of the first, each row: what its word looked at" in said
    assert "of the first" not in run("we don't sleep")[1]


def test_lines_of_a_file_and_of_standard_input(run, tmp_path, translator):
    expected = "".join(f"{text}\n" for text in texts_of(translator, ENGLISH))
    data = "".join(f"{line}\n" for line in ENGLISH).encode()
    (tmp_path / "in.txt").write_bytes(data)
    (tmp_path / "in.gz").write_bytes(gzip.compress(data))
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    for name in ("in.txt", "in.gz", "windows.txt"):
        assert run("--file", name, "--batch", 3)[:2] == (0, expected)
    assert run(given=data)[:2] == (0, expected)
    assert run(given=b"\xef\xbb\xbf" + data)[:2] == (0, expected)
    assert run("--file", "-", given=data.rstrip(b"\n"))[:2] == (0, expected)
    assert run(given=b"")[:2] == (0, "")


def test_a_line_ends_at_a_line_feed_alone(run, translator):
    line = "the small\u2028cat sleeps"
    code, said, _ = run(given=f"{line}\nyou love cats\n".encode())
    assert code == 0 and said.splitlines() == texts_of(translator, [line, "you love cats"])


def test_out_has_the_lines_and_standard_output_nothing(run, tmp_path, translator):
    code, said, _ = run("--out", "fr.txt", given="\n".join(ENGLISH).encode())
    assert (code, said) == (0, "")
    assert (tmp_path / "fr.txt").read_text().splitlines() == texts_of(translator, ENGLISH)
    assert [path.name for path in tmp_path.iterdir()] == ["fr.txt"]


def test_several_translations_of_lines_are_numbered(run, translator):
    code, said, _ = run("--n-best", 2, "--beam", 4, given="\n".join(ENGLISH[:2]).encode())
    found = translator.translate(ENGLISH[:2], n_best=2, beam=4)
    expected = [
        f"{number}\t{one.score:.4f}\t{one.text}"
        for number, translations in enumerate(found, 1)
        for one in translations
    ]
    assert code == 0 and said.splitlines() == expected


def test_picture_and_page(run, tmp_path):
    code, said, _ = run("I love you.", "--plot", "a.png", "--html", "a.html")
    assert code == 0 and "picture of the attention: a.png" in said
    assert "page of every head: a.html" in said
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>") and "I love you. →" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.png"]


def test_links_in_a_file_and_on_standard_output(run, tmp_path, translator):
    found = [one[0] for one in translator.translate(ENGLISH)]
    expected = [translator.between_spaces(one).links() for one in found]
    lines = "\n".join(ENGLISH).encode()
    code, said, _ = run("--pharaoh", "links.txt", given=lines)
    assert code == 0 and said.splitlines() == texts_of(translator, ENGLISH)
    assert [gold.sure for gold in read_links(tmp_path / "links.txt")] == expected
    code, said, _ = run("--pharaoh", "-", "--out", "fr.txt", given=lines)
    assert code == 0 and said == (tmp_path / "links.txt").read_text()
    code, said, told = run(ENGLISH[0], "--pharaoh", "-")
    assert code == 0 and said == (tmp_path / "links.txt").read_text().split("\n")[0] + "\n"
    assert told.splitlines()[0].strip() == found[0].text and "each row: what its word" in told
    code, said, told = run(ENGLISH[0], "--pharaoh", "one.txt")
    assert (code, told) == (0, "") and said.endswith("links: one.txt\n")


@pytest.mark.parametrize("model", ["bahdanau", "pieces", "transformer"])
def test_links_fit_the_texts_between_their_spaces(run, tmp_path, model):
    sources = ["I don't love you, cats.", "we sleep (we love cats)."]
    data = "\n".join(sources).encode()
    options = ["--pharaoh", "links.txt", "--out", "fr.txt", "--prefix", "Je t'aime."]
    code, said, _ = run(*options, given=data, model=model)
    assert (code, said) == (0, "")
    targets = (tmp_path / "fr.txt").read_text().splitlines()
    links = [gold.sure for gold in read_links(tmp_path / "links.txt")]
    assert len(targets) == len(links) == 2
    for source, target, found in zip(sources, targets, links):
        assert "".join(target.split()).startswith("Jet'aime.")
        assert {word for _, word in found} == set(range(len(target.split())))
        assert {word for word, _ in found} <= set(range(len(source.split())))


def test_the_help_says_what_is_counted(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, said, _ = run("--help", model=None)
    said = " ".join(said.replace("│", " ").split())
    assert "split at spaces and counted from 0" in said


def test_attention_inside_the_encoder_is_shown_instead(run, models, tmp_path):
    options = ["--plot", "a.png", "--html", "a.html"]
    code, said, _ = run("I love you.", *options, model="encoder-qkv")
    assert code == 0
    assert "no alignment: the model (encoder-qkv) has no attention from target to source\n" in said
    assert "what a source word looked at in the encoder, in percent - encoder" in said
    rows = [line for line in said.splitlines() if line.endswith("|") and line.count("|") == 2]
    assert [row.split("|")[0].strip() for row in rows] == ["I", "love", "you", "."]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "I love you. →" in (tmp_path / "a.html").read_text()


def test_how_to_search_and_what_to_show(run, models):
    loaded = Translator.load(models / "transformer.safetensors", reading="output", end="kept")
    search = {"beam": 3, "shortest": 4, "longest": 6, "length_penalty": 2.0}
    search |= {"coverage_penalty": 0.5}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in search.items()]
    options += ["--prefix", "le petit", "--reading", "output", "--end", "kept"]
    found = loaded("I love you.", prefix="le petit", **search)
    code, said, _ = run("I love you.", *options, "--head", "0.cross:1", model="transformer")
    assert code == 0 and said.splitlines()[0].strip() == found.text
    assert found.text.startswith("le petit") and "0.cross, head 1" in said and "</s>" in said
    code, said, _ = run("I love you.", *options[:1], model="transformer")
    assert code == 0 and "0.cross, mean of heads" in said and "</s>" not in said


@pytest.mark.parametrize("model", ["silent-bahdanau", "silent-transformer"])
def test_an_empty_translation_is_told_and_not_drawn(run, tmp_path, model):
    for option in ("--plot=a.png", "--html=a.html"):
        code, said, told = run("I love you.", option, model=model)
        assert (code, said) == (1, "") and not list(tmp_path.iterdir())
        assert "--plot and --html: the translation is empty, so there is nothing to show" in told
    code, said, told = run("I love you.", model=model)
    assert (code, said.strip()) == (0, "the translation is empty")
    assert told == "regard: the translation has no word for: I love you.\n"
    lines = run(given=b"I love you.\n\n", model=model)
    assert lines == (0, "\n\n", told.replace("regard: ", "regard: line 1: "))


def test_a_model_without_attention_still_translates(run, models):
    found = Translator.load(models / "none.safetensors")("I love you.")
    code, said, _ = run("I love you.", model="none")
    assert code == 0 and said.splitlines()[0].strip() == found.text
    assert "no alignment: the model (none) has no attention from target to source" in said
    assert "nor any inside its encoder" in " ".join(said.split())


NO_ATTENTION = "the model (none) has no attention from target to source"


@pytest.mark.parametrize(
    ("arguments", "options", "wanted"),
    [
        (["--file", "bad.txt"], {}, "bad.txt:2: byte 3 of the line is 0xff, which is no UTF-8"),
        ([], {"given": b"ok\nno\xff\n"}, "standard input:2: byte 3 of the line is 0xff, which"),
        (["--file", "nowhere.txt"], {}, "there is no file nowhere.txt"),
        (["hello", "--file", "in.txt"], {}, "both a text and --file in.txt were given"),
        (["hello", "--out", "x"], {}, "--out x is for lines of --file or standard input"),
        ([""], {}, "text 1 is empty, expected a sentence"),
        (["a", "--n-best", "6"], {}, "--n-best is 6, expected at most the beam width, 5"),
        (["a", "--n-best", "2", "--pharaoh", "x"], {}, "it does not go with --n-best"),
        (["a", "--seed", "2"], {}, "--seed 2 has no effect without --sample"),
        (["a", "--sample", "--beam", "2"], {}, "--beam 2 has no effect with --sample"),
        (["a", "--sample", "--temperature", "0"], {}, "temperature is 0.0, expected a finite numb"),
        (["--pharaoh", "-"], {"given": b"a\n"}, "would both go to standard output; say --out too"),
        (["--plot", "x.png"], {"given": b"a\n"}, "--plot and --html show one text"),
        (["a", "--plot", "x.gif"], {}, "x.gif: ends in '.gif', expected .png"),
        (["a", "--html", "no/x.html"], {}, "no/x.html: there is no folder no"),
        (["a", "--pharaoh", "no/x"], {}, "no/x: there is no folder no"),
        (["--out", "no/x"], {"given": b"a\n"}, "no/x: there is no folder no"),
        (["a", "--plot", "x.png"], {"model": "none"}, f"--plot: {NO_ATTENTION}"),
        (["a", "--html", "x.html"], {"model": "none"}, f"--html: {NO_ATTENTION}"),
        (["a", "--pharaoh", "x"], {"model": "none"}, f"--pharaoh: {NO_ATTENTION}"),
        (["a", "--pharaoh", "x"], {"model": "encoder-qkv"},
         "--pharaoh: the model (encoder-qkv) has no attention from target to source"),
        (["a", "--head", "cross"], {"model": "none"}, f"--head cross: {NO_ATTENTION}"),
        (["a", "--head", "9.cross"], {}, "--head 9.cross, expected one of cross:0"),
        (["a", "--end", "foo"], {}, "--end foo, expected one of left-out, renormalised, kept"),
        (["a", "--longest", "0"], {}, "Invalid value for '--longest'"),
        (["a", "--shortest", "4", "--longest", "4"], {},
         "--shortest is 4, expected less than --longest, 4, which includes the end token"),
        (["--out", "x", "--pharaoh", "./x"], {"given": b"a\n"},
         "--out and --pharaoh are both x; say two files"),
        (["--file", "in.txt", "--out", "in.txt"], {}, "--file and --out are both in.txt"),
        (["a", "--plot", "x.png", "--pharaoh", "x.png"], {}, "--pharaoh and --plot are both x.png"),
        (["a", "--html", "x.html", "--pharaoh", "x.html"], {}, "--pharaoh and --html are both"),
        (["a"], {"model": "nowhere"}, "nowhere.safetensors"),
        (["a", "--beam", "0"], {}, "Invalid value for '--beam'"),
    ],
)  # fmt: skip
def test_errors_are_plain_and_nothing_is_written(run, tmp_path, arguments, options, wanted):
    (tmp_path / "in.txt").write_text("first\n\nthird\n")
    (tmp_path / "bad.txt").write_bytes(b"ok\nno\xff\n")
    code, said, told = run(*arguments, **options)
    assert code != 0 and said == ""
    assert wanted in told and "Traceback" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "in.txt"]


def test_an_unknown_reading_is_refused(run):
    code, said, told = run("a", "--reading", "shifted")
    assert (code, said) == (1, "")
    assert "--reading shifted, expected one of output, input" in told


def test_a_file_that_is_no_checkpoint(run, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    code, _, told = run("a", "--model", "x.safetensors", model=None)
    assert code == 1 and "x.safetensors is not a safetensors file" in told


def test_the_shipped_model_may_be_missing(run, monkeypatch):
    monkeypatch.setattr(translator_module, "SHIPPED", ("not-there.safetensors",))
    code, said, told = run("hello", model=None)
    assert (code, said) == (1, "")
    assert "the translator that ships with regard cannot be read: there is no file" in told
    assert "not-there.safetensors; say another with --model" in told


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_a_terminal_without_a_text_is_asked_for_texts(run, monkeypatch, translator):
    for typed in (b"I love you.\nwe don't sleep\n\nx\n", b"I love you.\nwe don't sleep"):
        monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(typed)))
        code, said, told = run()
        assert (code, told) == (0, "")
        for text in ("I love you.", "we don't sleep"):
            assert translator(text).text in said
        assert said.count("each row: what its word looked at") == 2
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"\xe2\x80\x8b\nI love you.\n")))
    code, said, told = run("--json", "--longest", "2")
    assert code == 0 and '"source": "I love you."' in said


def test_json_has_words_weights_and_links(run, translator, tmp_path):
    (tmp_path / "in.txt").write_text("I love you. We sleep\n\nwe sleep\n")
    code, said, _ = run("--file", "in.txt", "--json", "--n-best", 2)
    lines = [json.loads(line) for line in said.splitlines()]
    assert code == 0 and len(lines) == 3 and lines[1] == []
    texts = ["I love you. We sleep", "we sleep"]
    for ranked, expected in zip((lines[0], lines[2]), translator.translate(texts, n_best=2)):
        assert [one["text"] for one in ranked] == [one.text for one in expected]
        best, matrix = ranked[0], expected[0].matrix
        assert best["source_words"] == matrix.source and best["target_words"] == matrix.target
        torch.testing.assert_close(torch.tensor(best["weights"]), matrix.weights, atol=1e-6, rtol=0)
        assert {tuple(link) for link in best["links"]} == expected[0].links
    assert lines[0][0]["parts"] == [[part.source, part.text] for part in translator(texts[0]).parts]
    assert json.loads(run("we sleep", "--json")[1])[0]["head"] == "cross:0"
    refusal = run("we sleep", "--json", "--pharaoh", "links.txt")
    assert refusal[0] == 1 and "--json has words, weights and links" in refusal[2]


def test_a_device_must_be_there(run):
    assert run("we sleep", "--device", "cpu")[0] == 0
    for name in ("cuda:7", "nothing"):
        code, _, told = run("we sleep", "--device", name)
        assert code == 1 and told.startswith(f"regard: --device {name} cannot be used: ")


def test_an_empty_line_stays_an_empty_line(run, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("I love you.\n\n \nYou love cats.\n")
    code, _, told = run(
        "--file", "in.txt", "--out", "out.txt", "--pharaoh", "links.txt", "--prefix", "Je"
    )
    assert code == 0, told
    said, links = ((tmp_path / name).read_text().split("\n") for name in ("out.txt", "links.txt"))
    assert [bool(line) for line in said] == [True, False, False, True, False]
    assert len(links) == 5 and links[0] and not links[1] and not links[2]
    code, said, _ = run("--n-best", "2", given=b"I love you.\n\nYou love cats.\n")
    assert code == 0 and [line[0] for line in said.splitlines()] == ["1", "1", "3", "3"]
    code, said, _ = run(given=b"\n\n")
    assert (code, said) == (0, "\n\n")


def test_a_dash_is_standard_input(run, translator):
    code, said, _ = run("-", given=b"I love you.\nYou love cats.\n")
    assert code == 0
    assert said.splitlines() == texts_of(translator, ["I love you.", "You love cats."])


def test_a_text_of_lines_is_translated_line_by_line_and_a_file_name_remarked_on(run, tmp_path):
    (tmp_path / "cats").write_text("I love you.\n")
    assert "regard: cats is a file; --file cats translates its lines\n" in run("cats")[2]
    _, shown, told = run("I love you.\nYou love cats.", "--longest", "3")
    assert "lines" not in told
    assert shown.count("you") == 1 and shown.count("cats") == 1  # a matrix for each sentence
    assert "is a file" not in run("cat" * 2000, "--longest", "2")[2]  # longer than names can be


def test_a_folder_is_no_file_of_lines(run, tmp_path):
    code, _, told = run("--file", tmp_path)
    assert code == 1 and "is a folder, expected a file of lines" in told.replace("\n", " ")


def test_words_that_the_model_does_not_know_are_named(run):
    assert run("I love you.")[2] == ""
    code, said, told = run("the elephant loves\x1b me.")
    assert code == 0 and "regard:" not in said
    assert told == (
        "regard: 4 of 6 words are unknown to the model and may be translated wrongly: "
        "elephant, loves, \\x1b, me\n"
    )
    lines = b"I love you.\n\none two three four five six seven\none\n"
    code, said, told = run(given=lines)
    assert code == 0 and len(said.splitlines()) == 4
    assert told.endswith(
        "8 of 12 words (7 different) are unknown to the model and may be translated wrongly: "
        "one, two, three, four, five and 2 more\n"
    )
    assert run("the 猫 cat", model="pieces")[2].endswith(
        "1 of 3 words are unknown to the model and may be translated wrongly: 猫\n"
    )


@pytest.mark.parametrize("reading", ["input", "output"])
def test_words_that_looked_mostly_at_the_end_are_named(run, models, reading):
    """A text of one word and the end: half of the words of a model look there more than not."""
    kept = Translator.load(models / "transformer.safetensors", end="kept", reading=reading)
    options = {"model": "transformer"}
    named = 0
    for text in ("cat", "sleep", "love", "you"):
        matrix = kept(text).matrix
        shares = [(w, s) for w, s in zip(matrix.target, matrix.weights[:, -1]) if w != "</s>"]
        words = ", ".join(f"{word} ({100 * share:.0f} %)" for word, share in shares if share > 0.5)
        wanted = f"end of the sentence, which is not drawn: {words}; --end kept draws it"
        for end in ("left-out", "renormalised"):
            said = " ".join(run(text, "--end", end, "--reading", reading, **options)[1].split())
            assert (wanted in said) if words else ("not drawn" not in said)
        assert "not drawn" not in run(text, "--end", "kept", **options)[1]
        named += bool(words)
    assert named
