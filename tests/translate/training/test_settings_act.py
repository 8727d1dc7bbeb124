"""Settings of data, vocabularies and training act: each has an effect whose right value is known.

Those of search, scores and validation are in `test_scoring_settings_act.py`.
"""

import pytest
import sentencepiece
import torch
from torch.nn.functional import cross_entropy
from toy_training import toy

from regard.translate.config import Config
from regard.translate.data import Pair, collate
from regard.translate.models.recurrent import RecurrentTranslator
from regard.translate.tokens import NAMES, UNKNOWN
from regard.translate.training import read_log, train
from regard.translate.training.corpus import read_data, train_vocabularies
from regard.translate.training.resuming import load_state
from regard.translate.training.step import Stepper

#: Words of source and target.
SIZES = {"a": (1, 1), "b": (1, 3), "c": (4, 1), "d": (4, 4), "e": (5, 5), "f": (2, 5)}


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        ("data.longest=5", "abcdef"),
        ("data.longest=4", "abcd"),
        ("data.longest=1", "a"),
        ("data.ratio=0.0", "abcdef"),
        ("data.ratio=2.0", "abdef"),  # one is added to both: 4 : 2 stays, as 6 : 3; 5 : 2 goes
        ("data.ratio=1.5", "ade"),
        ("data.ratio=1.0", "ade"),
    ],
)
def test_pairs_are_left_out(tmp_path, setting, left):
    lines = (f"{name} " * one + "\t" + f"{name} " * two for name, (one, two) in SIZES.items())
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    table = {"data": {part: [str(tmp_path / "pairs.tsv")] for part in ("train", "valid")}}
    found = read_data(Config.from_table(table, [setting]).data)
    assert "".join(pair.source.split()[0] for pair in found.train) == left
    assert len(found.valid) == len(SIZES)


def test_another_split_seed_is_the_other_split(tmp_path):
    """The numbers are those that `test_split_pairs` holds over releases."""
    lines = (f"sentence {number % 100}\t{number}\n" for number in range(200))
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    table = {"data": {"train": [str(tmp_path / "pairs.tsv")], "valid_pairs": 3, "test_pairs": 2}}
    tests = {
        seed: [pair.target for pair in read_data(config.data).test]
        for seed in (0, 7)
        for config in [Config.from_table(table, [f"data.split_seed={seed}"])]
    }
    assert tests[7] == ["20", "63", "120", "163"]
    assert len(tests[0]) == 4 and not {*tests[0]} & {*tests[7]}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("vocabulary.least=1", ["Le", "le", "chat", "dort", "LE"]),
        ("vocabulary.least=2", ["Le", "le", "chat"]),
        ("vocabulary.least=3", ["Le"]),
        ("vocabulary.lower=false", ["Le", "le", "chat", "dort", "LE"]),
        ("vocabulary.lower=true", ["le", "chat", "dort"]),
    ],
)
def test_words_are_chosen(setting, words):
    pairs = [Pair("x", text, 1) for text in ("Le chat le Le", "Le chat le", "LE dort")]
    made = train_vocabularies(Config.from_table({}, [setting]).vocabulary, pairs).target
    assert sorted(made.entries[len(NAMES) :]) == sorted(words)
    assert [number == UNKNOWN for number in made.encode("chat dort")] == [
        word not in words for word in ("chat", "dort")
    ]
    assert made.lower == setting.endswith("true")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_are_learned_as_they_are_wanted(kind):
    """Byte pairs are numbered as they are joined: 0, -1, -2; pieces of a unigram have log P."""
    pairs = [
        Pair("x", text, 1) for text in ("lower lowest low", "newer newest new", "wider widest")
    ]
    settings = ["vocabulary.kind=pieces", f"vocabulary.pieces={kind}", "vocabulary.joint=true"]
    config = Config.from_table({"vocabulary": {"source_size": 285}}, settings)
    made = train_vocabularies(config.vocabulary, pairs).target
    processor = sentencepiece.SentencePieceProcessor(model_proto=made.model)
    learned = range(len(NAMES) + 256, len(made))
    scores = [processor.get_score(number) for number in learned]
    if kind == "bpe":
        assert scores == [-float(place) for place in range(len(learned))]
        assert processor.id_to_piece(learned[0]) == "we"  # 4 times: no other two come as often
    else:
        assert all(score < -1 and score % 1 for score in scores)


PLAIN = (
    "training.optimiser=sgd",
    "training.optimiser.clip=0.0",
    "training.label_smoothing=0.0",
    'training.precision="64"',
    "model.dropout=0.0",
    "search.beam=1",  # the scores at the end are no matter here
    "search.longest=1",
)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains with some settings; returns the run, and what a stepper had before and after each
    step: its parameters, and the loss by torch's own cross-entropy."""
    make = Stepper.make

    def run(*settings, smoothing=0.0):
        config, noted = toy(tmp_path / "data", *PLAIN, *settings), []

        def state(stepper):
            weights = stepper.wrapped.module.state_dict()
            return {name: tensor.clone() for name, tensor in weights.items()}

        def noting(stepper, step, rate, forcing):
            loss = plain_loss(stepper, step, smoothing)
            before = state(stepper)
            found = make(stepper, step, rate, forcing)
            noted.append((before, state(stepper), loss))
            return found

        monkeypatch.setattr(Stepper, "make", noting)
        return train(config, tmp_path / "run"), noted

    return run


@torch.no_grad()
def plain_loss(stepper, step, smoothing):
    total = 0.0
    for numbers in step.batches:
        batch = collate(stepper.examples, numbers)
        logits = stepper.wrapped.module(
            batch.source, batch.source_mask, batch.target_in, batch.target_mask
        )
        target = batch.target_out[batch.target_mask]
        total += cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum").item()
    return total / step.tokens


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        (["training.schedule=constant"], [1, 1, 1, 1]),
        (["training.schedule.warmup=4"], [0.25, 0.5, 0.75, 1]),
        (
            [
                "training.schedule=linear",
                "training.schedule.warmup=2",
                "training.schedule.floor=0.2",
            ],
            [0.5, 1, 0.6, 0.2],
        ),
        (["training.schedule=cosine"], [0.853553, 0.5, 0.146447, 0]),
        (["training.schedule=inverse-square-root"], [1, 0.707107, 0.577350, 0.5]),
        (  # two steps an epoch
            [
                "training.batch_sentences=100",
                "training.schedule=halving",
                "training.schedule.halve_after=1.0",
            ],
            [1, 1, 0.5, 0.5],
        ),
    ],
    ids=["constant", "warmup", "linear", "cosine", "inverse-square-root", "halving"],
)
def test_a_clipped_step_goes_as_far_as_the_schedule_says(trained, settings, factors):
    """A gradient that is clipped has the length of the clip: so the way is rate times clip."""
    _, noted = trained(
        *settings,
        "training.steps=4",
        "training.optimiser.rate=0.7",
        "training.optimiser.clip=0.01",
    )
    ways = [
        torch.cat([(after[name] - before[name]).flatten() for name in after]).norm().item()
        for before, after, _ in noted
    ]
    assert ways == pytest.approx([0.7 * 0.01 * factor for factor in factors], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_label_smoothing_is_in_the_loss_of_training(trained, smoothing):
    run, noted = trained(
        "training.steps=2", f"training.label_smoothing={smoothing}", smoothing=smoothing
    )
    rows = [row for row in read_log(run.folder.log) if row["kind"] == "train"]
    wanted = [loss for _, _, loss in noted]
    assert [float(row["loss"]) for row in rows] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "decay", "wanted"),
    [
        ("sgd", 0.0, lambda row: row),
        ("sgd", 0.5, lambda row: row * (1 - 0.1 * 0.5) ** 2),
        ("adamw", 0.0, lambda row: row),
        ("adamw", 0.5, lambda row: row * (1 - 0.1 * 0.5) ** 2),
        ("adam", 0.0, lambda row: row),
        ("adam", 0.5, None),
    ],
)
def test_weight_decay_takes_its_share_of_a_row_without_gradient(trained, name, decay, wanted):
    """No source has an unknown word, so the decay alone moves its embedding; with Adam it is a
    gradient like others, whose first step is the rate whatever its size."""
    _, noted = trained(
        f"training.optimiser={name}",
        f"training.optimiser.weight_decay={decay}",
        "training.optimiser.rate=0.1",
        "training.steps=2",
    )
    (first, second, _), (_, third, _) = noted
    place = "embeddings.own_source.weight"
    rows = [state[place][UNKNOWN] for state in (first, second, third)]
    assert (first[place] != second[place]).any()
    if wanted is None:
        torch.testing.assert_close(rows[1], rows[0] - 0.1 * rows[0].sign(), rtol=0, atol=1e-6)
    else:
        torch.testing.assert_close(rows[2], wanted(rows[0]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.98), (0.3, 0.98), (0.9, 0.5)])
def test_betas_are_the_shares_that_a_step_keeps(trained, name, beta1, beta2):
    """After one step the means are (1 - β₁) g and (1 - β₂) g²."""
    run, _ = trained(
        f"training.optimiser={name}",
        f"training.optimiser.beta1={beta1}",
        f"training.optimiser.beta2={beta2}",
        "training.steps=1",
    )
    remembered = load_state(run.folder.last).optimiser
    mean, square = (
        torch.cat([remembered[key].flatten() for key in sorted(remembered) if key.endswith(ending)])
        for ending in (".exp_avg", ".exp_avg_sq")
    )
    assert mean.abs().max() > 0
    torch.testing.assert_close(mean**2 / (1 - beta1) ** 2, square / (1 - beta2))


@pytest.fixture
def decoded(monkeypatch):
    """What every call of a decoder was given: forcing, mode, gradient or none, autocast."""
    found, decode = [], RecurrentTranslator.decode

    def noting(self, encoded, target, *, weights=False, forcing=1.0):
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        found.append((forcing, self.training, torch.is_grad_enabled(), dtype))
        return decode(self, encoded, target, weights=weights, forcing=forcing)

    monkeypatch.setattr(RecurrentTranslator, "decode", noting)
    return found


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["training.forcing=1.0"], [1.0, 1.0, 1.0, 1.0]),
        (["training.forcing=0.25"], [0.25, 0.25, 0.25, 0.25]),
        (
            [
                "training.forcing.name=linear",
                "training.forcing.start=0.9",
                "training.forcing.end=0.3",
                "training.forcing.steps=3",
            ],
            [0.9, 0.7, 0.5, 0.3],
        ),
    ],
    ids=["always", "constant", "linear"],
)
def test_the_decoder_is_forced_as_often_as_the_schedule_says(tmp_path, decoded, settings, wanted):
    train(
        toy(tmp_path / "data", "training.steps=4", "search.longest=1", *settings), tmp_path / "run"
    )
    steps = [forcing for forcing, _, gradient, _ in decoded if gradient]
    looks = [forcing for forcing, training, _, _ in decoded if not training]
    assert steps == pytest.approx(wanted)
    assert looks and {*looks} == {1.0}


@pytest.mark.parametrize(("precision", "dtype"), [("32", None), ("bf16", torch.bfloat16)])
def test_a_precision_is_that_of_steps_and_looks(tmp_path, decoded, precision, dtype):
    train(
        toy(
            tmp_path / "data",
            f'training.precision="{precision}"',
            "training.steps=2",
            "search.longest=1",
        ),
        tmp_path / "run",
    )
    assert {training for _, training, _, _ in decoded} == {True, False}
    assert {found for _, _, _, found in decoded} == {dtype}
