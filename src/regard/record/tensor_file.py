"""Tensors and a JSON header in one safetensors file; reading one runs no code."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import MissingExtraError, RegardError
from regard.files import make_folder, reading, written_whole

_CHECKSUMS = "checksums"  # of the header and the tensors, in the metadata


class OtherFormatError(RegardError):
    """A safetensors file of another kind; `format` is that of its header, if any."""

    def __init__(self, text: str, format: str | None) -> None:
        super().__init__(text)
        self.format = format


class TensorFile(NamedTuple):
    """A kind of file: a word for its content, and the format in its header."""

    kind: str
    format: str

    def write(self, path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Write a file atomically, also if the machine goes down."""
        store = library()
        owned = {
            name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()
        }
        make_folder(path.parent)
        text = json.dumps(header)
        metadata = {"format": self.format, self.kind: text, _CHECKSUMS: _checksums(text, owned)}
        try:
            with written_whole(path) as half_done:
                store.torch.save_file(owned, str(half_done), metadata=metadata)
        except store.SafetensorError as error:  # a full disk, among others
            raise RegardError(f"{path} cannot be written: {error}") from error

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The header and copies of the tensors: with unaligned memory some processors multiply in
        another order, and weights differ in their last bit.

        What is not as it was written is an error; files of before there were checksums are read.
        """
        with self._opened(path) as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        header = self._header(path, metadata)
        if _CHECKSUMS in metadata:
            _check(path, metadata[_CHECKSUMS], _checksums(metadata[self.kind], tensors))
        return header, tensors

    def header(self, path: Path) -> dict[str, Any]:
        """The header alone; no tensor is read."""
        with self._opened(path) as file:
            return self._header(path, file.metadata() or {})

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        store = library()
        try:
            with reading(path):
                if not path.exists():
                    raise RegardError(f"there is no file {path}")
                if path.is_dir():
                    raise RegardError(f"{path} is a folder, expected the file of a {self.kind}")
                with store.safe_open(str(path), framework="pt") as file:
                    yield file
        except store.SafetensorError as error:
            raise RegardError(f"{path} is not a safetensors file: {error}") from error

    def _header(self, path: Path, metadata: dict[str, str]) -> dict[str, Any]:
        if metadata.get("format") != self.format:
            raise OtherFormatError(
                f"{path} is a safetensors file, but not a {self.kind} of regard",
                metadata.get("format"),
            )
        wrong = f"{path}: its header is not that of a {self.kind}"
        try:
            header = json.loads(metadata[self.kind])
        except (KeyError, ValueError) as error:
            raise RegardError(f"{wrong}: {error}") from error
        if not isinstance(header, dict):
            raise RegardError(wrong)
        return header


def _checksums(header: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of the header, under the empty name, and of each tensor, as JSON."""
    sums = {"": zlib.crc32(header.encode())}
    for name, tensor in sorted(tensors.items()):
        sums[name] = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return json.dumps(sums)


def _check(path: Path, written: str, present: str) -> None:
    """Refuse content that has changed since it was written, by name."""
    if written == present:
        return
    try:
        before = json.loads(written)
    except ValueError:
        before = {}
    after = json.loads(present)
    changed = [name or "the header" for name, value in after.items() if before.get(name) != value]
    raise RegardError(
        f"{path} is damaged: {', '.join(changed[:3]) or 'its list of checksums'} is not as it was "
        "written (its checksum differs); take another copy of the file"
    )


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have a prefix, by the rest of the name."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def library() -> Any:
    """The safetensors package; raises with the command that installs it."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "store") from error
    return safetensors
