"""The folder of a run: what was asked, and what each shard gave."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.corpus.corpus import Shard
from regard.corpus.state import State
from regard.corpus.statistic import Statistic
from regard.errors import RegardError
from regard.files import PART, make_folder, reading, write_text
from regard.record.tensor_file import TensorFile

_FORMAT = "regard-collect-1"
_SHARD = TensorFile("shard", _FORMAT)


class RunFolder:
    """The files of a run.

    | file                      | what it is                                                   |
    |---------------------------|--------------------------------------------------------------|
    | `manifest.json`           | what was asked; at the end the other files with checksums    |
    | `shards/0.safetensors`, … | what each shard adds; written whole or not at all            |
    | `results.safetensors`     | all shards together; at the end                              |
    | `failures.jsonl`          | documents that were left out, and why; at the end            |
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "manifest.json"
        self.shards = path / "shards"
        self.results = path / "results.safetensors"
        self.failures = path / "failures.jsonl"

    def begin(self, settings: Mapping[str, Any], resume: bool) -> None:
        """Make the folder, or continue it where the settings are the same."""
        if self.path.exists() and not self.path.is_dir():
            raise RegardError(f"{self.path} is a file, expected a folder or nothing")
        if self.manifest.exists():
            if not resume:
                raise RegardError(
                    f"{self.path} has a run: continue it with resume=True "
                    "(--resume), or choose another folder"
                )
            self.check(settings)
            return
        if self.path.is_dir():
            strange = [p.name for p in self.path.iterdir() if not p.name.endswith(PART)]
            if strange:
                raise RegardError(
                    f"{self.path} has no run, but {', '.join(sorted(strange)[:3])}; choose an "
                    "empty folder, or a new one"
                )
        make_folder(self.path)
        self._write(settings, {})

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse to continue a run with other settings."""
        before = _flat(self.settings())
        now = _flat(json.loads(json.dumps(settings)))
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                raise RegardError(
                    f"{self.path} was collected with {name}={before.get(name)!r}, this run has "
                    f"{now.get(name)!r}: choose another folder"
                )

    def settings(self) -> dict[str, Any]:
        """What was asked."""
        settings = self._read()["settings"]
        assert isinstance(settings, dict)
        return settings

    def shard(self, number: int) -> Path:
        """The file of a shard."""
        return self.shards / f"{number}.safetensors"

    def has(self, shard: Shard) -> bool:
        """Whether a shard is done; an error if other documents were in its place."""
        path = self.shard(shard.number)
        if not path.exists():
            return False
        before, _ = self._read_shard(path)
        if before["digest"] != shard.digest:
            raise RegardError(
                f"{path} was collected from other documents: {before['first']} to "
                f"{before['first'] + before['size'] - 1} of the corpus have changed since"
            )
        return True

    def save(self, shard: Shard, state: State) -> None:
        """Write what a shard adds; an error if others were collected with other weights."""
        for number in self.numbers()[:1]:
            self._check_weights(_SHARD.header(self.shard(number)), state.weights)
        about = {"first": shard.first, "size": shard.size, "digest": shard.digest}
        about["weights"] = state.weights
        _SHARD.write(self.shard(shard.number), state.tensors(), state.header() | about)

    def numbers(self) -> list[int]:
        """The shards that are done."""
        stems = [path.stem for path in self.shards.glob("*.safetensors")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def states(self, statistics: Mapping[str, Statistic]) -> Iterator[State]:
        """What each shard added, in their order, so that sums are the same to the last bit."""
        weights = None
        for number in self.numbers():
            header, tensors = self._read_shard(self.shard(number))
            state = State.of(statistics, header, tensors)
            weights = state.weights if weights is None else weights
            self._check_weights(header, weights)
            yield state

    def _read_shard(self, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        try:
            return _SHARD.read(path)
        except RegardError as error:
            raise RegardError(
                f"{error}; if you delete it, resume=True collects its documents again"
            ) from error

    def _check_weights(self, header: Mapping[str, Any], weights: str) -> None:
        """Refuse shards of models that a function loaded with different weights."""
        before = header.get("weights", "")
        if before != weights:
            raise RegardError(
                f"{self.path} was collected with other weights of the model, whose digest is "
                f"{before!r}; those that were loaded now have {weights!r}: choose another folder"
            )

    def check_end(self, n_shards: int) -> None:
        """Refuse shards beyond the end of the corpus."""
        beyond = [number for number in self.numbers() if number >= n_shards]
        if beyond:
            raise RegardError(
                f"{self.shard(beyond[0])} was collected from other documents: the corpus had more "
                f"than the {n_shards} shards of now"
            )

    def finish(self, state: State) -> None:
        """Write the results."""
        _SHARD.write(self.results, state.tensors(), state.header())
        lines = [json.dumps(failure._asdict(), ensure_ascii=False) for failure in state.failures]
        write_text(self.failures, "".join(f"{line}\n" for line in lines))
        paths = [*map(self.shard, self.numbers()), self.results]
        checksums = {path.relative_to(self.path).as_posix(): _checksum(path) for path in paths}
        self._write(self.settings(), checksums)

    def result(self, statistics: Mapping[str, Statistic]) -> State | None:
        """What all shards added, if the run is finished."""
        if not self.results.exists():
            return None
        listed = self._read()["files"].get(self.results.name)
        if listed is not None and listed != _checksum(self.results):
            raise RegardError(
                f"{self.results} is not the file that {self.manifest.name} lists: its checksum "
                "differs; collect again with resume=True, after deleting it"
            )
        header, tensors = _SHARD.read(self.results)
        return State.of(statistics, header, tensors)

    # -- the manifest

    def _write(self, settings: Mapping[str, Any], files: Mapping[str, str]) -> None:
        manifest = {"format": _FORMAT, "settings": settings, "files": files}
        write_text(self.manifest, json.dumps(manifest, indent=1) + "\n")

    def _read(self) -> dict[str, Any]:
        with reading(self.manifest):
            text = self.manifest.read_text(encoding="utf-8")
        try:
            manifest = json.loads(text)
            valid = manifest["format"] == _FORMAT and {"settings", "files"} <= manifest.keys()
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise RegardError(f"{self.manifest} is not the manifest of a run of regard.collect")
        return dict(manifest)


def _checksum(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings of settings as one dictionary, `corpus.batch_size`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat
