"""The folder of a run: what lies where, and what may be done to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from regard.errors import RegardError
from regard.translate.checkpoint import FILE
from regard.translate.config import Config
from regard.translate.training.stopping import Best
from regard.whole_files import write_text, written_whole


@dataclass(frozen=True)
class RunFolder:
    """The files of a run.

    | file                  | what it is                                                       |
    |-----------------------|------------------------------------------------------------------|
    | `config.toml`         | the configuration as used, every default written out             |
    | `best.safetensors`    | the translator that did best on the validation pairs             |
    | `average.safetensors` | the mean of the parameters of the best few; made at the end      |
    | `last.safetensors`    | everything that resuming needs                                   |
    | `kept/`               | the best few                                                     |
    | `log.csv`, `events/`  | what happened                                                    |
    | `scores.json`         | BLEU and chrF of the translators, with signatures; at the end    |
    """

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def average(self) -> Path:
        return self.path / "average.safetensors"

    @property
    def last(self) -> Path:
        return self.path / "last.safetensors"

    @property
    def log(self) -> Path:
        return self.path / "log.csv"

    @property
    def scores(self) -> Path:
        return self.path / "scores.json"

    @property
    def events(self) -> Path:
        return self.path / "events"

    def kept(self, step: int) -> Path:
        """The parameters of a step, if they are among the best."""
        return self.path / "kept" / f"step-{step:08}.safetensors"

    def check(self, resume: bool) -> None:
        """Refuse to begin where something lies already."""
        if self.path.exists() and not self.path.is_dir():
            raise RegardError(f"{self.path} is a file, expected a folder or nothing")
        if not resume and self.path.exists() and any(self.path.iterdir()):
            raise RegardError(
                f"{self.path} is not empty: continue its run with --resume, or choose another "
                "folder with --out"
            )

    def begin(self, config: Config) -> None:
        """Write down what is about to be done."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.config, config.toml())

    def prune(self, best: Best) -> None:
        """Take away what is no longer among the best, and what was half written."""
        wanted = {self.kept(one.step) for one in best.kept}
        for path in self.path.glob("kept/*"):
            if path not in wanted:
                path.unlink(missing_ok=True)
        for path in self.path.glob("*.part"):
            path.unlink(missing_ok=True)

    def publish(self, step: int) -> None:
        """Make the parameters of a step the best ones."""
        with written_whole(self.best) as half_done:
            shutil.copyfile(self.kept(step), half_done)


def average_files(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the tensors of several translators, in the precision they have."""
    paths = list(paths)
    total: dict[str, Tensor] = {}
    for path in paths:
        _, tensors = FILE.read(path)
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                total[name] = total.get(name, 0) + tensor.double() / len(paths)
            else:
                total[name] = tensor
    first = FILE.read(paths[0])[1]
    return {name: tensor.to(first[name].dtype) for name, tensor in total.items()}
