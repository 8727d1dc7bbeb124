"""Tensors and a JSON header in one safetensors file; reading one runs no code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard.errors import MissingExtraError, RegardError


class TensorFile(NamedTuple):
    """A kind of file: what it holds, in a word, and the format that its header names."""

    kind: str
    format: str

    def write(self, path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Write a file whole, or not at all, also where the machine goes down."""
        store = library()
        owned = {
            name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()
        }
        half_done = path.with_name(path.name + ".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegardError(f"{path.parent} cannot be made a folder: {error}") from error
        metadata = {"format": self.format, self.kind: json.dumps(header)}
        try:
            store.torch.save_file(owned, str(half_done), metadata=metadata)
            put_in_place(half_done, path)
        finally:
            half_done.unlink(missing_ok=True)

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The header and the tensors."""
        store = library()
        if not path.exists():
            raise RegardError(f"there is no file {path}")
        try:
            with store.safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except store.SafetensorError as error:
            raise RegardError(f"{path} is not a safetensors file: {error}") from error
        if metadata.get("format") != self.format:
            raise RegardError(f"{path} is a safetensors file, but not a {self.kind} of regard")
        wrong = f"{path}: its header is not that of a {self.kind}"
        try:
            header = json.loads(metadata[self.kind])
        except (KeyError, ValueError) as error:
            raise RegardError(f"{wrong}: {error}") from error
        if not isinstance(header, dict):
            raise RegardError(wrong)
        return header, tensors


def put_in_place(half_done: Path, path: Path) -> None:
    """Give a written file its name, once its bytes are on the disk; then the name is too.

    A rename alone may reach the disk before the bytes do, and a machine that goes down between the
    two leaves a file of zeros where there was a good one.
    """
    with half_done.open("r+b") as file:
        os.fsync(file.fileno())
    half_done.replace(path)
    if os.name != "nt":  # Windows has no folders that can be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def library() -> Any:
    """safetensors, or an error that says how to install it."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "store") from error
    return safetensors
