"""The example of the repository trains as it stands; here fewer steps of it."""

from pathlib import Path

from regard.translate.config import Config
from regard.translate.training import train
from regard.translate.translator import Translator

EXAMPLE = Path(__file__).parents[3] / "examples/translate/small.toml"


def test_it_learns_as_it_stands(tmp_path):
    config = Config.from_file(EXAMPLE, ["training.steps=150", "search.beam=1"])
    trained = train(config, tmp_path / "run")
    assert trained.ending == "finished" and trained.scores["best", "test"].bleu.value > 60
    found = Translator.load(trained.folder.best)("The girl sees a black cat.")
    assert found.text == "La fille voit un chat noir."


def test_its_warm_up_and_its_end_suit_its_size():
    config = Config.from_file(EXAMPLE)
    lines = Path(config.data.train[0]).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 900
    assert config.training.schedule.warmup < 100 and not config.vectors.files
