"""The folder of a run: what is refused, what is kept, what is left behind by a mistake."""

import sys
from dataclasses import replace

import pytest
from toy_training import toy

from regard.errors import MissingExtraError, RegardError
from regard.translate.config import Config
from regard.translate.training import RunFolder, Watcher, train
from regard.translate.training.folder import COLUMNS


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match="file is a file, expected a folder or nothing"):
        RunFolder(tmp_path / "file").check(resume=True)
    RunFolder(tmp_path / "nothing").check(resume=False)


def test_a_folder_with_something_in_it_is_refused_and_kept(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RegardError, match=r"run is not empty: continue its run with --resume"):
        train(toy(tmp_path / "data"), tmp_path / "run")
    assert contents(tmp_path / "run") == {"notes.txt": "mine"}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"notes.txt": "mine"}, "notes.txt"),
        ({"config.toml": "# mine\n[model]\nname = 'dot'\n"}, "config.toml"),
        ({"config.toml": "no = toml ="}, "config.toml"),
        ({"log.csv": "mine", "config.toml": ""}, "config.toml, log.csv"),
        ({"average.safetensors": "", "scores.json": "{}"}, "average.safetensors, scores.json"),
    ],
)
def test_resuming_where_there_is_no_run_overwrites_nothing(tmp_path, files, named):
    (tmp_path / "run").mkdir()
    for name, text in files.items():
        (tmp_path / "run" / name).write_text(text)
    wanted = f"run has no run to resume: there is no last.safetensors, but {named}; choose"
    with pytest.raises(RegardError, match=wanted):
        train(toy(tmp_path / "data", "training.steps=1"), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == files


def test_a_run_that_was_killed_before_it_saved_is_begun_again(tmp_path):
    config = toy(tmp_path / "data", "training.steps=1", "training.optimiser.rate=1e-7")
    folder = RunFolder(tmp_path / "run")
    folder.kept(1).parent.mkdir(parents=True)
    folder.begin(config)
    folder.log.write_text(",".join(COLUMNS) + "\n1,0,tra")
    for path in (folder.best, folder.kept(1), tmp_path / "run" / "log.csv.part"):
        path.write_text("half")
    assert train(config, folder.path, resume=True).ending == "finished"
    assert not list(folder.path.rglob("*.part"))


def test_a_place_that_cannot_be_written_is_known_before_the_data_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    config = toy(tmp_path / "data", "data.train=missing.tsv")
    with pytest.raises(RegardError, match=r"file/run cannot be made a folder: Not a directory$"):
        train(config, tmp_path / "file" / "run")


def test_a_mistake_leaves_no_folder(tmp_path):
    with pytest.raises(RegardError, match=r"missing\.tsv"):
        train(toy(tmp_path / "data", "data.train=missing.tsv"), tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(RegardError, match=r"missing\.tsv"):
        train(toy(tmp_path / "data", "data.train=missing.tsv"), tmp_path / "mine" / "run")
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("forcing", ["training.forcing=0.5", "training.forcing.name=linear"])
def test_a_model_that_cannot_be_unforced_says_so_before_the_folder_is_begun(tmp_path, forcing):
    settings = ("model.name=transformer", "model.hidden=16", forcing)
    with pytest.raises(
        RegardError,
        match=r"training\.forcing goes down to 0\.\d, which model\.name 'transformer' cannot do: ",
    ):
        train(toy(tmp_path / "data", *settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_tensorboard_is_said_before_the_folder_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'regard\[tensorboard\]'"):
        train(toy(tmp_path / "data", "training.tensorboard=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_translator_that_was_taken_away_is_named(tmp_path):
    config = toy(tmp_path / "data", "training.steps=1")
    trained = train(config, tmp_path / "run")
    trained.folder.kept(1).unlink()
    trained.folder.best.unlink()
    wanted = r"best\.safetensors cannot be written: No such file .*kept/step-00000001\.safetensors"
    with pytest.raises(RegardError, match=wanted):
        train(config, tmp_path / "run", resume=True)


def test_two_trainings_do_not_share_a_folder(tmp_path):
    config = toy(tmp_path / "data", "training.steps=1", "training.optimiser.rate=1e-7")
    folder = RunFolder(tmp_path / "run")
    with folder.created():
        with pytest.raises(RegardError, match=r"run: another process is training into it"):
            train(config, folder.path, resume=True)
        assert list(folder.path.iterdir()) == []
    assert train(config, folder.path).ending == "finished"


def test_a_search_that_the_model_cannot_serve_is_said_before_the_folder_is_begun(tmp_path):
    config = toy(tmp_path / "data", "model.name=none", "search.coverage_penalty=0.2")
    wanted = r"search\.coverage_penalty is 0\.2, but model\.name 'none' has no attention from"
    with pytest.raises(RegardError, match=wanted):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_embedding_wants_one_vocabulary(tmp_path):
    config = toy(tmp_path / "data", "model.tie=all", "model.embedding=24")
    with pytest.raises(RegardError, match=r"model\.tie is 'all', one .*vocabulary\.joint"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_configuration_is_refused(tmp_path):
    wanted = r"train: config is 'a\.toml', expected a Config: Config\.from_file\(path\) reads one"
    with pytest.raises(RegardError, match=wanted):
        train("a.toml", tmp_path / "run")


def test_validation_with_what_is_learned_is_told(tmp_path):
    said = []
    watcher = type("Notes", (Watcher,), {"note": lambda self, text: said.append(text)})()
    config = toy(tmp_path / "data", "training.steps=1", "training.optimiser.rate=1e-7")
    train(config, tmp_path / "run", watcher=watcher)
    assert "flatter" not in said[0]
    same = replace(config, data=replace(config.data, valid=config.data.train))
    train(same, tmp_path / "same", watcher=watcher)
    known = "200 of 200 validation sources are among the training pairs: their scores flatter"
    assert known in "".join(said)


def test_the_configuration_is_written_as_it_was_used(tmp_path):
    quick = ("training.steps=1", "training.optimiser.rate=1e-9")
    first = train(toy(tmp_path / "data", *quick, "vocabulary.lower=true"), tmp_path / "first")
    more = (f"training.start={first.folder.best}", "vocabulary.source_size=77")
    second = train(toy(tmp_path / "data", *quick, *more), tmp_path / "second")
    written = Config.from_file(second.folder.config).vocabulary
    assert written.lower and written.source_size != 77
