"""The plan of an epoch, the best parameters, logs, averages, clocks and random states."""

import json
import random
from dataclasses import asdict
from types import SimpleNamespace

import numpy
import pytest
import torch
from toy_training import toy

from regard.errors import RegardError
from regard.translate.checkpoint import FILE, Checkpoint, load_checkpoint
from regard.translate.config import (
    Config,
    DataConfig,
    SearchOptions,
    TrainingConfig,
    ValidationConfig,
    VocabularyConfig,
)
from regard.translate.data import Examples, Pair
from regard.translate.evaluation import score
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.training import (
    Watcher,
    read_log,
    scoring,
    stopping,
    train,
    translate_texts,
)
from regard.translate.training.corpus import fingerprint, read_data, train_vocabularies, within
from regard.translate.training.folder import average_files
from regard.translate.training.resuming import random_states, restore_random_states
from regard.translate.training.scoring import final_scores, lower_words
from regard.translate.training.setup import say_by_frequency
from regard.translate.training.step import Stepper, plan_epoch
from regard.translate.training.stopping import Best, Clock, RankedStep
from regard.translate.vocabulary import WordVocabulary


def examples(count):
    return Examples(
        [[5] * (1 + n % 7) + [2] for n in range(count)],
        [[6] * (1 + n % 5) + [2] for n in range(count)],
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_plan_has_every_sentence_once_and_counts_all_tokens(ranks, accumulate):
    data, config = examples(101), TrainingConfig(batch_tokens=40, accumulate=accumulate)
    plans = [plan_epoch(data, config, 3, rank, ranks) for rank in range(ranks)]
    assert len({len(plan) for plan in plans}) == 1
    seen = [number for plan in plans for step in plan for batch in step.batches for number in batch]
    assert sorted(seen) == list(range(101))
    for steps in zip(*plans):
        numbers = [number for step in steps for batch in step.batches for number in batch]
        tokens = sum(len(data.target[number]) for number in numbers)
        assert [step.tokens for step in steps] == [tokens] * ranks
    assert plan_epoch(data, config, 4, 0, ranks) != plans[0]


def test_the_best_are_kept_in_order():
    best = Best("bleu", size=2)
    for step, value in enumerate([1.0, 3.0, 2.0, 3.0, 0.0], start=1):
        best = best.look(step, value)
    assert best.kept == (RankedStep(2, 3.0), RankedStep(4, 3.0)) and best.since == 3
    assert best.holds(4) and not best.holds(1)
    assert Best.of(ValidationConfig(metric="bleu", average=2), best.table()) == best
    fewer = Best.of(ValidationConfig(metric="bleu", average=1), best.table())
    assert fewer == Best("bleu", 1, (RankedStep(2, 3.0),), since=3)


def test_the_least_loss_is_best():
    best = Best("loss", size=3).look(1, 2.0).look(2, 1.0).look(3, 1.5)
    assert [one.step for one in best.kept] == [2, 3, 1] and best.since == 1


def test_random_states_come_back():
    before = random_states()
    random.gauss(0, 1), numpy.random.standard_normal()  # each keeps a second number for later
    states = random_states()
    expected = random.gauss(0, 1), numpy.random.standard_normal(), torch.rand(2).tolist()
    restore_random_states(states)
    found = random.gauss(0, 1), numpy.random.standard_normal(), torch.rand(2).tolist()
    assert found == expected
    restore_random_states(before)


def test_the_average_is_the_mean(tmp_path):
    tensors = [
        {"model.a": torch.tensor([1.0, 2.0]) * n, "source.model": torch.tensor([3])}
        for n in (1, 2, 6)
    ]
    for number, found in enumerate(tensors):
        FILE.write(tmp_path / str(number), found, {})
    average = average_files(tmp_path / str(number) for number in range(3))
    assert average["model.a"].tolist() == [3.0, 6.0] and average["model.a"].dtype == torch.float32
    assert average["source.model"].tolist() == [3]


def test_the_average_of_a_run_is_that_of_its_best(tmp_path):
    trained = train(toy(tmp_path / "data", "training.validation.average=3"), tmp_path / "run")
    folder = trained.folder
    kept = [FILE.read(folder.kept(one.step))[1] for one in trained.best.kept]
    assert len(kept) == 3
    _, average = FILE.read(folder.average)
    for name, tensor in average.items():
        wanted = torch.stack([one[name].double() for one in kept]).mean(0)
        torch.testing.assert_close(tensor.double(), wanted, rtol=0, atol=1e-6)
    best = load_checkpoint(folder.best)
    assert best.extra["step"] == trained.best.kept[0].step
    assert best.extra["valid"]["loss"] == trained.best.kept[0].value
    assert load_checkpoint(folder.average).extra["steps"] == [one.step for one in trained.best.kept]


class Noting(Watcher):
    def __init__(self):
        self.steps, self.looks, self.notes = [], [], []

    def note(self, text):
        self.notes.append(text)

    def stepped(self, now):
        self.steps.append(now)

    def validated(self, step, found, best):
        self.looks.append((step, found.loss, best))


def test_training_ends_when_the_validation_gets_no_better(tmp_path):
    settings = (
        "training.validation.patience=2",
        "training.optimiser.rate=1e-30",
        "training.epochs=9",
    )
    trained = train(toy(tmp_path / "data", *settings), tmp_path / "run")
    looks = [row for row in read_log(trained.folder.log) if row["kind"] == "valid"]
    assert trained.ending == "no better" and len(looks) == 3
    again = train(toy(tmp_path / "data", *settings), tmp_path / "run", resume=True)
    assert again.ending == "no better" and again.step == trained.step


def test_patience_waits_for_the_end_of_the_warm_up(tmp_path):
    settings = (
        "training.validation.patience=2",
        "training.validation.every=2",
        "training.optimiser.rate=1e-30",
        "training.schedule.warmup=11",
        "training.epochs=9",
    )
    noting = Noting()
    trained = train(toy(tmp_path / "data", *settings), tmp_path / "run", watcher=noting)
    assert (trained.ending, trained.step) == ("no better", 14)
    assert "warmup" not in "".join(noting.notes)


def test_a_training_that_is_all_warm_up_says_so(tmp_path):
    noting = Noting()
    settings = ("training.schedule.warmup=1000", "training.steps=3")
    train(toy(tmp_path / "data", *settings), tmp_path / "run", watcher=noting)
    said = "training.schedule.warmup is 1,000 steps, but the training has 3: its rate never gets"
    assert any(note.startswith(said) for note in noting.notes)


def test_training_ends_when_the_time_is_over(tmp_path):
    config = toy(tmp_path / "data", "training.epochs=1000", "training.validation.every=1000")
    trained = train(config, tmp_path / "run", minutes=0.02)
    assert trained.ending == "time" and trained.folder.best.exists()
    assert ("average", "valid") in trained.scores
    again = train(config, tmp_path / "run", resume=True, minutes=0.02)
    assert again.step > trained.step and again.seconds > trained.seconds
    rows = read_log(trained.folder.log)
    steps, looks = (
        [int(row["step"]) for row in rows if row["kind"] == kind] for kind in ("train", "valid")
    )
    assert steps == list(range(1, again.step + 1))
    assert looks == [trained.step, again.step]


def test_a_loss_that_is_not_finite_is_an_error_and_the_last_state_stays(tmp_path):
    sgd = "training.optimiser=sgd"
    train(toy(tmp_path / "data", sgd, "training.steps=3"), tmp_path / "run")
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    settings = (sgd, "training.optimiser.rate=3e38", "training.save_every=1000")
    with pytest.raises(RegardError, match=r"the (loss|model) is not finite any more at step"):
        train(toy(tmp_path / "data", *settings), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


def test_a_validation_that_is_not_finite_is_never_the_best(tmp_path):
    config = toy(tmp_path / "data", "training.optimiser=sgd", "training.steps=3")
    train(config, tmp_path / "run")
    before = (tmp_path / "run" / "best.safetensors").read_bytes()
    wild = toy(
        tmp_path / "data", "training.optimiser=sgd", "training.optimiser.rate=3e38",
        "training.optimiser.clip=0.0", "training.log_every=100", "training.validation.every=1",
    )  # fmt: skip
    with pytest.raises(RegardError, match="the validation loss is not finite any more at step 4"):
        train(wild, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "best.safetensors").read_bytes() == before


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_pairs_without_a_place_are_counted(tmp_path):
    settings = ("model.name=tutorial", "model.longest=5", "training.steps=1")
    config, notes = toy(tmp_path / "data", *settings), Notes()
    train(config, tmp_path / "run", watcher=notes)
    long = [
        sum(len(pair.source.split()) > 5 for pair in part)
        for part in (read_data(config.data).train, read_data(config.data).valid)
    ]
    assert min(long) > 0
    lines = notes.notes[0].splitlines()
    assert (
        f"longer than model.longest (5), left out: {long[0]} training pairs, {long[1]} validation "
        "pairs"
    ) in lines
    assert any(
        line.startswith(f"{200 - long[0]} pairs to learn from, {40 - long[1]} to validate with")
        for line in lines
    )


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_part_without_a_pair_that_fits_is_refused(tmp_path, part):
    config = toy(tmp_path / "data", "model.name=tutorial", "model.longest=6")
    (tmp_path / "data" / f"{part}.tsv").write_text("a b c d e f g\ta b\n" * 3)
    wanted = f"there are no {part} pairs left: the sources of all 3 are longer than model.longest"
    with pytest.raises(RegardError, match=wanted):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_watcher_is_told(tmp_path):
    noting = Noting()
    trained = train(toy(tmp_path / "data", "training.epochs=2"), tmp_path / "run", watcher=noting)
    assert [now.step for now in noting.steps] == list(range(1, trained.step + 1))
    assert noting.steps[-1].steps == trained.step and noting.steps[-1].seconds_left == 0
    assert all(now.tokens_per_second > 0 and now.loss > 0 for now in noting.steps)
    assert len(noting.looks) == 2 and noting.looks[0][2]
    assert "200 pairs to learn from, 40 to validate with" in noting.notes[0]


def test_the_time_limit_holds_with_the_scores_at_the_end(tmp_path, monkeypatch):
    """By a clock that steps and translations move on."""
    now = [0.0]
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def taking(seconds, function):
        def slow(*arguments):
            now[0] += seconds(*arguments)
            return function(*arguments)

        return slow

    monkeypatch.setattr(Stepper, "make", taking(lambda *_: 0.5, Stepper.make))
    of_each = taking(lambda _, texts, *rest: 0.05 * len(texts), scoring._best_of_each)
    monkeypatch.setattr(scoring, "_best_of_each", of_each)
    config = toy(tmp_path / "data", "training.epochs=1000", "training.validation.every=1000")
    trained = train(config, tmp_path / "run", minutes=1.0)
    assert trained.ending == "time" and ("average", "valid") in trained.scores
    assert 58 < now[0] <= 60.5  # the scores take eight seconds


def test_a_clock_counts_earlier_parts_but_not_for_its_limit():
    clock = Clock(minutes=1.0, earlier=500.0)
    assert not clock.over and clock.total >= 500
    assert Clock(minutes=0.0).over and not Clock(minutes=None).over
    for wrong in (-1.0, float("nan")):
        with pytest.raises(RegardError, match=f"minutes must be at least 0, found {wrong}"):
            Clock(wrong)


def test_a_model_begins_by_saying_tokens_as_often_as_they_come():
    """The output layer alone: with features of 0 it has the frequencies, one added to each."""
    model = build_model(ModelConfig("none", embedding=4, hidden=4), 6, 6)
    say_by_frequency(model, Examples([[4, 2], [4, 2]], [[4, 4, 5, 2], [4, 2]]))
    with torch.no_grad():
        said = model.logits(torch.zeros(4)).softmax(0)
    torch.testing.assert_close(said, torch.tensor([1, 1, 3, 1, 4, 2]) / 12)


def test_vocabularies_are_joint_or_not():
    pairs = [Pair("a b", "c d", 1), Pair("a", "d", 2)]
    apart = train_vocabularies(VocabularyConfig(), pairs)
    joint = train_vocabularies(VocabularyConfig(joint=True), pairs)
    assert apart.source is not apart.target and len(apart.source) == len(apart.target) == 6
    assert joint.source is joint.target and len(joint.source) == 8


def test_pieces_may_be_in_lower_case():
    pairs = [Pair("The Cat sleeps", "Le Chat dort", 1), Pair("The DOG", "Le CHIEN", 2)]
    config = VocabularyConfig(kind="pieces", lower=True, joint=True, source_size=300)
    both = train_vocabularies(config, pairs)
    assert both.source.decode(both.source.encode("The DOG")) == "the dog"


def test_final_scores_are_counted_in_two_ways(tmp_path):
    config = toy(tmp_path / "data", "training.steps=1", "search.beam=1")
    trained = train(config, tmp_path / "run")
    checkpoint = load_checkpoint(trained.folder.best)
    pairs = [Pair("A b c", "C'est l'Homme, n'est-ce pas?", 1), Pair("d e", "Oui.", 2)]
    found = final_scores(checkpoint, pairs, config.search, torch.device("cpu"))
    texts = translate_texts(checkpoint, ["A b c", "d e"], config.search, torch.device("cpu"))
    natural = score(texts, [pair.target for pair in pairs])
    assert (found.bleu, found.chrf, found.sentences) == (natural.bleu, natural.chrf, 2)
    assert "case:lc" in found.words_bleu.signature and "tok:none" in found.words_bleu.signature
    assert lower_words(pairs[0].target) == "c' est l' homme , n' est-ce pas ?"
    written = json.loads(trained.folder.scores.read_text())
    assert written["search"]["beam"] == 1
    assert written["scores"]["best"]["valid"] == asdict(trained.scores["best", "valid"])


def test_scores_of_words_are_blind_to_case_and_spacing():
    """What an oracle says in another case and spacing is all right, word by word."""

    class Oracle(WordVocabulary):
        def decode(self, numbers):
            return "JE t' aime  ."

    words = Oracle(["x"])
    config = Config(model=ModelConfig("none", embedding=4, hidden=4))
    checkpoint = Checkpoint(config, words, words, build_model(config.model, 5, 5).eval())
    pairs = [Pair("x", "Je t'aime.", 1)] * 2
    found = final_scores(checkpoint, pairs, SearchOptions(beam=1, longest=3), torch.device("cpu"))
    assert found.words_bleu.value == pytest.approx(100) and found.bleu.value < 50


def test_data_that_is_missing_is_named(tmp_path):
    with pytest.raises(RegardError, match=r"data\.train names no file"):
        read_data(DataConfig())
    (tmp_path / "a.tsv").write_text("a\tb\n\t\n")
    with pytest.raises(
        RegardError, match=r"no pairs to validate with: give data\.valid, or data\.valid_pairs"
    ):
        read_data(DataConfig(train=(str(tmp_path / "a.tsv"),)))
    (tmp_path / "empty.tsv").write_text("\t\n")
    with pytest.raises(RegardError, match=r"(?s)no pair of data\.train is left .*empty +1\n"):
        read_data(DataConfig(train=(str(tmp_path / "empty.tsv"),), valid_pairs=1))
    (tmp_path / "nothing.tsv").write_text("")
    with pytest.raises(RegardError, match=r"data\.valid has no pairs: .*nothing\.tsv"):
        read_data(
            DataConfig(train=(str(tmp_path / "a.tsv"),), valid=(str(tmp_path / "nothing.tsv"),))
        )
    with pytest.raises(RegardError, match=r"missing\.tsv"):
        read_data(DataConfig(train=(str(tmp_path / "missing.tsv"),)))


def test_data_is_split_cleaned_and_limited(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"x\ts {n}\tt {n}\n" for n in range(100)) + "x\ts\t\n")
    file = (str(tmp_path / "a.tsv"),)
    found = read_data(DataConfig(train=file, source=2, target=3, valid_pairs=10, test_pairs=20))
    assert (len(found.train), len(found.valid), len(found.test)) == (70, 10, 20)
    assert found.report.dropped["empty"] == 1
    with pytest.raises(RegardError, match=r"data.valid_pairs is 9000 and data.test_pairs 0: valid"):
        read_data(DataConfig(train=file, source=2, target=3, valid_pairs=9000))
    wanted = "data.valid_pairs is 60 and data.test_pairs 40: together they take every distinct"
    with pytest.raises(RegardError, match=wanted):
        read_data(DataConfig(train=file, source=2, target=3, valid_pairs=60, test_pairs=40))
    found = read_data(DataConfig(train=file, source=2, target=3, valid_pairs=10, first=50))
    assert len(found.train) == 40


def test_a_header_is_no_pair(tmp_path):
    (tmp_path / "a.tsv").write_text("english\tfrench\n" + "".join(f"s {n}\tt {n}\n" for n in "ab"))
    file = (str(tmp_path / "a.tsv"),)
    assert read_data(DataConfig(train=file, valid_pairs=1)).report.read == 3
    found = read_data(DataConfig(train=file, valid_pairs=1, header=True))
    assert found.report.read == 2 and "english" not in {pair.source for pair in found.train}
    assert len(read_data(DataConfig(train=file, valid=file, header=True)).valid) == 2


def test_sources_without_a_place_are_left_out():
    data = examples(20)
    assert all(len(source) <= 4 for source in within(data, 4).source)
    assert within(data, None) is data
    assert fingerprint(data) != fingerprint(within(data, 4))
