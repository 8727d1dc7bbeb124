"""Tensors and a JSON header in one safetensors file; reading one runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard.errors import MissingExtraError, RegardError
from regard.whole_files import written_whole


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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RegardError(f"{path.parent} cannot be made a folder: {error}") from error
        metadata = {"format": self.format, self.kind: json.dumps(header)}
        with written_whole(path) as half_done:
            store.torch.save_file(owned, str(half_done), metadata=metadata)

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


def library() -> Any:
    """safetensors, or an error that says how to install it."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("safetensors", "store") from error
    return safetensors
