"""A configuration: from TOML and back, and what is said of one that is wrong."""

import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.tables import override, write_toml
from regard.translate.config import Config, ForcingConfig, OptimiserConfig, ScheduleConfig


def test_what_is_not_said_has_its_default():
    config = Config.from_table({})
    assert config == Config() and config.model.name == "bahdanau"


def test_toml_and_back_is_the_same():
    config = Config.from_table(
        {"data": {"train": ['a "b" é\t', "c"]}, "training": {"optimiser": {"rate": 5e-4}}}
    )
    assert Config.from_table(tomllib.loads(config.toml())) == config
    assert Config.from_table(config.table()) == config


@settings(max_examples=60, deadline=None)
@given(st.text())
@example('\U0001f600 \x7f\x00\x1b"\\\r\n\t\x85\u2028')
def test_every_text_comes_back_from_toml(text):
    config = Config.from_table({"data": {"train": [text, f"{text}2"], "source": text}})
    assert Config.from_table(tomllib.loads(config.toml())) == config


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf[model]\nhidden = 3\n")
    assert Config.from_file(tmp_path / "config.toml").model.hidden == 3


def test_numbers_may_be_said_as_numbers():
    said = ["training.precision=64", "data.source=1", "data.target=2"]
    config = Config.from_table({}, said)
    assert config.training.precision == "64"
    assert (config.data.source, config.data.target) == (1, 2)
    assert Config.from_table(tomllib.loads(config.toml())) == config
    assert Config.from_table({}, ['data.source="1"', "data.target=fr"]).data.source == "1"


def test_the_reference_preset_lies_below_the_file():
    config = Config.from_table({"preset": "reference", "model": {"hidden": 64}})
    assert (config.model.embedding, config.model.hidden, config.model.longest) == (300, 64, 100)
    assert (config.vocabulary.source_size, config.vocabulary.target_size) == (9000, 10_000)
    assert config.data.longest == 100
    assert Config.from_table({"preset": "reference"}).model.hidden == 500


def test_settings_lie_above_the_file():
    said = [
        "model.hidden=256",
        "model.name=dot",
        'data.train=["a", "b"]',
        "training.schedule=cosine",
    ]
    config = Config.from_table({"model": {"hidden": 3}}, [*said, "training.schedule.warmup=7"])
    assert (config.model.hidden, config.model.name) == (256, "dot")
    assert config.data.train == ("a", "b")
    assert config.training.schedule == ScheduleConfig("cosine", warmup=7)


def test_short_forms():
    config = Config.from_table({"training": {"forcing": 0.5, "optimiser": "sgd"}})
    assert (config.training.forcing.name, config.training.forcing.start) == ("constant", 0.5)
    assert config.training.optimiser.name == "sgd"


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({"modle": {}}, "there is no setting modle; did you mean model?"),
        ({"model": {"hiden": 3}}, "there is no setting model.hiden; did you mean model.hidden?"),
        ({"training": {"schedule": {"warmpu": 3}}}, "did you mean training.schedule.warmup?"),
        ({"search": {"zzz": 3}}, "there is no setting search.zzz; there are: beam, "),
        ({"hidden": 3}, "there is no setting hidden; did you mean model.hidden?"),
        ({"training": {"rate": 1}}, "did you mean training.optimiser.rate?"),
        ({"model": {"hidden": "3"}}, "model.hidden must be a whole number, found '3' (str)"),
        ({"model": {"hidden": 3.5}}, "model.hidden must be a whole number, found 3.5 (float)"),
        ({"model": {"hidden": True}}, "model.hidden must be a whole number, found True (bool)"),
        ({"training": {"label_smoothing": True}}, "must be a number, found True (bool)"),
        ({"vocabulary": {"joint": 1}}, "vocabulary.joint must be true or false, found 1 (int)"),
        ({"data": {"train": [3]}}, "data.train must be a text, found 3 (int)"),
        ({"data": {"train": ["a", "b", "c"]}}, "one file of pairs or two parallel files, found 3"),
        ({"model": 3}, "model must be a table, found 3 (int)"),
        ({"model": {"cell": "gruu"}}, "must be one of 'gru', 'lstm'; found 'gruu' (str); did you "
         "mean 'gru'?"),
        ({"training": {"optimiser": {"rate": float("inf")}}}, "rate must be finite, found inf"),
        ({"training": {"optimiser": {"rate": 0}}}, "optimiser.rate must be above 0, found 0"),
        ({"training": {"forcing": 1.5}}, "training.forcing.start must be from 0 to 1, found 1.5"),
        ({"training": {"epochs": 0}}, "training.epochs must be above 0, found 0"),
        ({"preset": "referense"}, "preset must be one of reference; found 'referense'"),
        ({"preset": ["reference"]}, "preset must be one of reference; found ['reference']"),
        ({"preset": 0}, "preset must be one of reference; found 0"),
        ({"training": {"precision": 16}}, "one of '32', 'bf16', '64'; found 16 (int); did you "
         "mean 'bf16'?"),
        ({"training": {"precision": True}}, "one of '32', 'bf16', '64'; found True (bool)"),
        ({"training": {"seed": 2**63}}, "training.seed must be from 0 to below 2 to the power of "
         "63, found 9223372036854775808"),
        ({"training": {"seed": -1}}, "training.seed must be from 0 to below 2 to the power of 63"),
        ({"training": {"optimiser": {"beta1": 1}}}, "training.optimiser.beta1 must be from 0 to "
         "below 1, found 1.0"),
        ({"training": {"optimiser": {"beta2": 1.0}}}, "training.optimiser.beta2 must be from 0 to "
         "below 1, found 1.0"),
        ({"training": {"optimiser": {"rate": 10**400}}}, "rate must be finite, found inf"),
        ({"training": {"label_smoothing": 1}}, "label_smoothing must be from 0 to below 1, found"),
        ({"data": {"ratio": 0.5}}, "data.ratio must be 0 or at least 1, found 0.5"),
        ({"data": {"ratio": -1}}, "data.ratio must be 0 or at least 1, found -1.0"),
        ({"data": {"source": 0}}, "data.source must be a column from 1, or its name; found 0"),
        ({"data": {"target": True}}, "data.target must be a whole number or a text, found True "
         "(bool)"),
        ({"data": {"source": 1.0}}, "data.source must be a whole number or a text, found 1.0"),
        ({"data": {"train": "\udce9"}}, "data.train must be a text that UTF-8 can hold, found "
         "'\\udce9'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(table, wanted):
    with pytest.raises(RegardError) as error:
        Config.from_table(table)
    assert wanted in str(error.value)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("hidden", "a setting is said as part.key=value, such as model.hidden=256; found 'hidden'"),
        ("=3", "a setting is said as part.key=value"),
        ("hidden=3", "there is no setting hidden; did you mean model.hidden?"),
        ("frozen=true", "there is no setting frozen; did you mean vectors.frozen?"),
        ("source=1", "there is no setting source; did you mean data.source or vectors.source?"),
        ("model.hiddn=3", "there is no setting model.hiddn; did you mean model.hidden?"),
        ("model.hidden.more=3", "model.hidden holds one value, so there is no model.hidden.more"),
        ("model.hidden=many", "model.hidden must be a whole number, found 'many' (str)"),
        ("model.hidden=" + "9" * 5000, "model.hidden must be a whole number, found '999"),
        ("model.hidden=" + "[" * 5000, "model.hidden must be a whole number, found '[[["),
    ],
)
def test_a_wrong_setting_is_named(setting, wanted):
    with pytest.raises(RegardError) as error:
        Config.from_table({}, [setting])
    assert wanted in str(error.value)


def test_a_setting_does_not_change_the_table_it_is_laid_over():
    table = {"model": {"hidden": 3}}
    override(Config, table, "model.hidden=4")
    assert table == {"model": {"hidden": 3}}


def test_paths_are_relative_to_the_file_or_begin_with_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_DATA", "/somewhere")
    monkeypatch.delenv("NO_DATA", raising=False)
    path = tmp_path / "config.toml"
    path.write_text('[data]\ntrain = ["sub/a.en", "$SOME_DATA/a.fr"]\n')
    config = Config.from_file(path)
    assert config.data.train == (str(tmp_path / "sub" / "a.en"), "/somewhere/a.fr")
    path.write_text('[data]\ntrain = "$NO_DATA/a.tsv"\n')
    with pytest.raises(RegardError, match="needs the environment variable NO_DATA, which is not"):
        Config.from_file(path)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (None, "cannot be read: No such file"),
        (b"[model", "is not TOML"),
        (
            b"[vocabulary]\nlower = True\n",
            r"is not TOML: Invalid value \(at line 2, column 9\): lower = True; TOML writes true",
        ),
        (b"[model]\nname = 'bahdenau'", "config.toml: model.name is 'bahdenau', expected one of"),
        (b"[model]\nheads = 2", "config.toml: model.heads is 2 with model.name 'bahdanau'"),
        (b"\xff\xfe", "is not TOML"),
        (b"[model]\nhidden = " + b"9" * 5000, "is not TOML"),
        (b"[model]\nhidden = " + b"[" * 5000, "is not TOML"),
        (b"[model]\nhiden = 3\n", r"config.toml: there is no setting model.hiden"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, wanted):
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RegardError, match=wanted):
        Config.from_file(path)


@pytest.mark.parametrize("more", ['vectors.source="glove.txt"', 'training.start="a.safetensors"'])
def test_paths_are_left_out(tmp_path, more):
    (tmp_path / "my.toml").write_text('data.train = "pairs.tsv"\ntraining.epochs = 3\n')
    config = Config.from_file(tmp_path / "my.toml", ["vocabulary.kind=words", more])
    assert config.toml().count(str(tmp_path)) == 2
    assert str(tmp_path) not in config.without_paths().toml()
    assert config.without_paths().training.epochs == 3


def test_a_setting_over_a_file_is_named_with_it(tmp_path):
    (tmp_path / "my.toml").write_text("model.hidden = 8\n")
    with pytest.raises(
        RegardError, match=r"my\.toml with model\.hiden=20: there is no setting mod"
    ):
        Config.from_file(tmp_path / "my.toml", ["model.hiden=20"])


def test_tables_without_values_are_written():
    assert write_toml({"a": {}, "b": None, "c": [1, 2.5, True]}) == "c = [1, 2.5, true]\n\n[a]\n"


def test_a_name_leaves_the_rest_of_its_table():
    table = {
        "training": {
            "optimiser": {"name": "adam", "rate": 3e-4, "clip": 5.0},
            "schedule": {"name": "linear", "warmup": 4000},
            "forcing": {"name": "linear", "end": 0.5, "steps": 7},
        }
    }
    said = ["training.optimiser=adamw", "training.schedule=cosine", "training.forcing=0.9"]
    found = Config.from_table(table, said).training
    assert found.optimiser == OptimiserConfig("adamw", rate=3e-4, clip=5.0)
    assert found.schedule == ScheduleConfig("cosine", warmup=4000)
    assert found.forcing == ForcingConfig("constant", start=0.9)  # a number says it all


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("vocabulary.pieces=bpe", r"vocabulary\.kind is 'words', expected 'pieces'"),
        ("vocabulary.least=2 vocabulary.kind=pieces", r"vocabulary\.kind is 'pieces', expected 'w"),
        ("training.optimiser.beta1=0.8 training.optimiser.name=sgd", "'sgd', expected 'adam' or"),
        ("training.schedule.floor=0.1", "'constant', expected 'linear' or 'cosine'"),
        ("training.schedule.halve_after=1", "'constant', expected 'halving'"),
        ("training.forcing.end=0.5", "'constant', expected 'linear' or 'exponential' or"),
        (
            "data.valid_pairs=5 data.valid=a.tsv",
            r"beside data\.valid: expected one",
        ),
    ],
)
def test_a_setting_without_effect_is_refused(tmp_path, setting, said):
    (tmp_path / "a.toml").write_text("")
    name = setting.partition("=")[0].replace(".", r"\.")
    with pytest.raises(RegardError, match=rf"{name} is .*, which has no effect .*{said}"):
        Config.from_file(tmp_path / "a.toml", setting.split())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"data": {"source": 1, "target": 1}}, r"data\.source and data\.target are both 1: a"),
        ({"data": {"train": ["a", "a"]}}, r"data\.train is a twice: a sentence would be its own"),
        ({"vocabulary": {"source_size": 3}}, r"vocabulary\.source_size must be above 4, .*found 3"),
    ],
)
def test_what_cannot_be_meant_is_refused(table, said):
    with pytest.raises(RegardError, match=said):
        Config.from_table(table)
