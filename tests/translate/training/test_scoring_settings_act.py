"""Settings of search, scores and validation act: models that say what they are told to show how."""

import math
from dataclasses import replace

import pytest
import torch
from toy_training import toy

from regard.translate.checkpoint import FILE, Checkpoint, load_checkpoint
from regard.translate.config import Config, SearchOptions
from regard.translate.data import Pair, read_pairs
from regard.translate.evaluation import score
from regard.translate.models.contract import (
    DecoderOutput,
    EncoderOutput,
    StepOutput,
    TranslationModel,
)
from regard.translate.training import score_pairs, train, translate_texts
from regard.translate.training.blocks import Block, WholeBlock
from regard.translate.training.corpus import Vocabularies
from regard.translate.training.folder import RunFolder
from regard.translate.training.loop import Loop, TrainingSetup, Watcher
from regard.translate.training.processes import new_fabric
from regard.translate.training.resuming import Position
from regard.translate.training.scoring import final_scores
from regard.translate.training.step import Stepper, new_optimiser
from regard.translate.training.stopping import Clock, StopRequest
from regard.translate.vocabulary import WordVocabulary

CPU = torch.device("cpu")
WORDS = WordVocabulary(["un", "deux", "trois", "quatre"], cut="spaces")
END_SURELY = {"</s>": 1.0}


class Told(TranslationModel):
    """Says a token with chances that follow from the last one, and looks at one place likewise."""

    def __init__(self, chances, looks=(), least=0.0):
        super().__init__()
        table = torch.full((len(WORDS), len(WORDS)), least)
        places = {word: number for number, word in enumerate(WORDS.entries)}
        for last in WORDS.entries:
            for word, chance in chances.get(last, END_SURELY).items():
                table[places[last], places[word]] = chance
        self.table = torch.nn.Parameter(table.log())
        self.looks = torch.tensor([int(word in looks) for word in WORDS.entries])
        self.sites = {"cross": 1}

    def encode(self, source, mask, *, weights=False):
        return EncoderOutput(mask, ())

    def start(self, encoded, beams=1):
        return ()

    def step(self, encoded, state, tokens, *, weights=False):
        seen = torch.nn.functional.one_hot(self.looks[tokens], encoded.mask.shape[1]).float()
        return StepOutput(self.table[tokens], (), {"cross": seen[:, None]} if weights else {})

    def decode(self, encoded, target, *, weights=False, forcing=1.0):
        return DecoderOutput(self.table[target])

    def logits(self, features):
        return features


#: log 0.52 is more than log 0.48, but log 0.52 / lp(2) is less than log 0.48 / lp(4).
SHORT_OR_LONG = {
    "<s>": {"un": 0.52, "deux": 0.48},
    "deux": {"trois": 1.0},
    "trois": {"quatre": 1.0},
}
#: The first word is the likelier, but nothing follows it surely: a beam finds the second.
GARDEN_PATH = {
    "<s>": {"un": 0.6, "deux": 0.4},
    "un": {"un": 0.3, "trois": 0.4, "</s>": 0.3},
    "trois": {"</s>": 1.0},
}
SEARCHES = [
    ("search.unknown=true", {"<s>": {"<unk>": 0.6, "un": 0.4}}, "<unk>"),
    ("search.unknown=false", {"<s>": {"<unk>": 0.6, "un": 0.4}}, "un"),
    ("search.length_penalty=0.0", SHORT_OR_LONG, "un"),
    ("search.length_penalty=0.6", SHORT_OR_LONG, "deux trois quatre"),
    ("search.coverage_penalty=0.0", {"<s>": {"un": 0.6, "deux": 0.4}}, "un"),
    ("search.coverage_penalty=0.2", {"<s>": {"un": 0.6, "deux": 0.4}}, "deux"),
    ("search.shortest=0", {"<s>": {"un": 1.0}}, "un"),
    ("search.shortest=2", {"<s>": {"un": 1.0}, "un": {"</s>": 0.9, "deux": 0.1}}, "un deux"),
    ("search.longest=3", {"<s>": {"un": 1.0}, "un": {"un": 1.0}}, "un un un"),
    ("search.longest=0", {"<s>": {"un": 1.0}, "un": {"un": 1.0}}, " ".join(["un"] * 14)),
    ("search.beam=1", GARDEN_PATH, "un trois"),
    ("search.beam=2", GARDEN_PATH, "deux"),
]


def told(chances, *settings, words=WORDS):
    """The source has two places, its word and its end; only `deux` looks at the second."""
    config = Config.from_table({}, settings)
    return Checkpoint(config, words, words, Told(chances, looks=["deux"]))


@pytest.mark.parametrize(("setting", "chances", "text"), SEARCHES)
def test_a_search_finds_what_its_setting_says(setting, chances, text):
    """Texts, and both ways to score them: chrF is 100 where the text is this one alone."""
    checkpoint = told(chances, setting)
    search = checkpoint.config.search
    assert translate_texts(checkpoint, ["un"], search, CPU) == [text]
    pairs = [Pair("un", text, 1)]
    assert score_pairs(checkpoint, pairs, search, CPU).chrf.value == pytest.approx(100)
    assert final_scores(checkpoint, pairs, search, CPU).chrf.value == pytest.approx(100)


def test_the_scores_of_a_run_are_those_of_its_search(tmp_path):
    settings = ("training.steps=5", "training.optimiser.rate=0.01", "search.longest=2")
    config = toy(tmp_path / "data", *settings)
    run = train(config, tmp_path / "run")
    pairs = read_pairs(*config.data.valid)
    for name, path in (("best", run.folder.best), ("average", run.folder.average)):
        found, other = (
            final_scores(load_checkpoint(path), pairs, search, CPU)
            for search in (SearchOptions(beam=2, longest=2), SearchOptions(beam=2))
        )
        assert run.scores[name, "valid"] == found != other


@pytest.mark.parametrize("lower", [True, False])
def test_case_counts_where_the_vocabulary_keeps_it(lower):
    words = WordVocabulary(["un", "deux", "trois", "quatre"], cut="spaces", lower=lower)
    checkpoint = told(
        {"<s>": {"un": 1.0}, "un": {"deux": 1.0}, "deux": {"trois": 1.0}, "trois": {"quatre": 1.0}},
        words=words,
    )
    pairs = [Pair("un", "UN Deux TROIS Quatre", 1)]
    validated = score_pairs(checkpoint, pairs, SearchOptions(), CPU)
    final = final_scores(checkpoint, pairs, SearchOptions(), CPU)
    for found in (validated.bleu, validated.chrf, final.bleu, final.chrf):
        assert found.value == pytest.approx(100) if lower else found.value < 50
    assert final.words_bleu.value == pytest.approx(100)


def new_loop(tmp_path, chances, pairs, *settings):
    """A training with a model that says what it was told."""
    config = Config.from_table({}, settings)
    fabric, model = new_fabric("32"), Told(chances, least=1e-9)
    both = Vocabularies(WORDS, WORDS)
    examples = both.examples(pairs)
    folder = RunFolder(tmp_path / "run")
    setting = TrainingSetup(fabric, config, folder, both, model, examples, examples, pairs)
    optimiser = new_optimiser(config.training.optimiser, model)
    stepper = Stepper(fabric, model, optimiser, examples, config.training)
    return Loop(
        setting, stepper, WholeBlock(Block(examples)), Position(),
        torch.zeros(0, dtype=torch.float64),
        clock=Clock(None), asked=StopRequest(), logs=[], watcher=Watcher(),
    )  # fmt: skip


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
@pytest.mark.parametrize("beam", [1, 4])
def test_validation_searches_greedily_whatever_the_beam(tmp_path, metric, beam):
    settings = (f"training.validation.metric={metric}", f"search.beam={beam}")
    pairs = [Pair("un", "un trois", 1)]
    found = new_loop(tmp_path, GARDEN_PATH, pairs, *settings).look()
    assert found.chrf == pytest.approx(100)


@pytest.mark.parametrize(("sentences", "count"), [(0, 3), (1, 1), (2, 2), (9, 3)])
def test_so_many_sentences_are_translated_for_a_look(tmp_path, sentences, count):
    references = ["un", "un deux", "quatre trois"]
    pairs = [Pair("un", text, line) for line, text in enumerate(references)]
    settings = ("training.validation.metric=chrf", f"training.validation.sentences={sentences}")
    found = new_loop(tmp_path, {"<s>": {"un": 1.0}}, pairs, *settings).look()
    wanted = [score(["un"] * n, references[:n]).chrf.value for n in (1, 2, 3)]
    assert len({*wanted}) == 3 and found.chrf == pytest.approx(wanted[count - 1])


def test_loss_and_accuracy_of_a_look_are_those_of_the_table(tmp_path):
    """Five tokens with their chances, of which the first, third and fifth are the first choice."""
    chances = {
        "<s>": {"un": 0.6, "deux": 0.4},
        "un": {"trois": 0.5, "deux": 0.3, "</s>": 0.2},
        "deux": {"</s>": 0.7, "un": 0.3},
    }
    pairs = [Pair("un", "un deux", 1), Pair("un", "deux", 2)]
    found = new_loop(tmp_path, chances, pairs, "training.label_smoothing=0.3").look()
    assert found.accuracy == pytest.approx(3 / 5)
    total = sum(map(math.log, (0.6, 0.3, 0.7, 0.4, 0.7)))
    assert found.loss == pytest.approx(-total / 5, rel=1e-5)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_the_most_bleu_and_chrf_are_best(tmp_path, metric):
    """Three looks, at models that say the first two, all four and the first three words."""
    chain = dict(zip(["<s>", "un", "deux", "trois"], ["un", "deux", "trois", "quatre"]))
    pairs = [Pair("un", "un deux trois quatre", 1)]
    loop = new_loop(tmp_path, {}, pairs, f"training.validation.metric={metric}")
    for step, words in enumerate((2, 4, 3), start=1):
        said = {last: {word: 1.0} for last, word in list(chain.items())[:words]}
        loop.setting.model.table.data = Told(said, least=1e-9).table.data
        loop.position = replace(loop.position, step=step)
        loop.look()
    best = loop.best.kept[0]
    assert (best.step, best.value, loop.best.since) == (2, pytest.approx(100), 1)
    assert FILE.header(loop.setting.folder.best)["extra"]["step"] == 2
