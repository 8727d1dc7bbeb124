"""The inputs of a model: a tensor or named tensors, and which axis has the positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.editing import Change
from regard.errors import RegardError, ShapeError, UnavailableError

Removed = Bool[Tensor, "example position"]

#: Masks of keys that models take, by name, and the value that means "is attended to".
MASKS = {"attention_mask": True, "src_key_padding_mask": False, "key_padding_mask": False}
_MAIN = ("input_ids", "inputs_embeds")
_ALONE = ""  # the name of a tensor that the model takes as its only argument


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of some examples; a replacement makes changed ones of them.

    Attributes:
        named: what the model takes, by name; a lone tensor is under "".
        main: the name of the tensor that has the positions on its second axis.
        embeddings: of each position, (example, position, width): the main tensor itself where it
            has features, else the output of the model's embedding. None where no embedding was
            found.
        direct: whether the embeddings are the main tensor itself.
        mean: the mean of the embeddings over all removable positions of the data, (width,).
        swapped: whether `embeddings` replace the output of the model's embedding.
        changes: to the attention of the model, as `regard.edit` takes them.
    """

    named: Mapping[str, Any]
    main: str
    embeddings: Float[Tensor, "example position ..."] | None = None
    direct: bool = False
    mean: Tensor | None = None
    swapped: bool = False
    changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, inputs: Any, input_name: str | None = None) -> Inputs:
        """Inputs from a tensor, or from tensors by name."""
        if isinstance(inputs, Tensor):
            named: dict[str, Any] = {_ALONE: inputs}
            main = _ALONE
        elif isinstance(inputs, Mapping):
            named = dict(inputs)
            main = _main(named, input_name)
        else:
            raise RegardError(
                f"inputs are a {type(inputs).__name__}, expected a tensor or tensors by name, as "
                "{'input_ids': …, 'attention_mask': …}"
            )
        tensor = named[main]
        if tensor.dim() < 2:
            raise ShapeError(
                f"inputs{f' {main!r}' * bool(main)} are {tuple(tensor.shape)}, expected ids "
                "(example, position) or features (example, position, width)"
            )
        if tensor.is_floating_point():
            return cls(named, main, tensor, direct=True)
        return cls(named, main)

    def __len__(self) -> int:
        return int(self.named[self.main].shape[0])

    @property
    def device(self) -> torch.device:
        return torch.device(self.named[self.main].device)

    @property
    def is_features(self) -> bool:
        """Whether the main tensor has features and not ids."""
        return bool(self.named[self.main].is_floating_point())

    @property
    def ids(self) -> Tensor:
        """Numbers of tokens, (example, position)."""
        if self.is_features:
            raise UnavailableError("these inputs are features, not numbers of tokens")
        ids: Tensor = self.named[self.main]
        return ids

    @property
    def mask_name(self) -> str | None:
        """The name of the mask that says which positions are attended to, if there is one."""
        for name in MASKS:
            mask = self.named.get(name)
            if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[0] == len(self):
                return name
        return None

    def attended(self) -> Removed | None:
        """Which positions the mask lets through; None where there is no mask."""
        name = self.mask_name
        if name is None:
            return None
        mask: Tensor = self.named[name]
        return mask != 0 if MASKS[name] else mask == 0

    def rows(self, examples: Tensor | slice) -> Inputs:
        """Some examples, by number; what has no axis of examples stays as it is."""
        count = len(self)
        named = {
            name: value[examples] if isinstance(value, Tensor) and _of_examples(value, count)
            else value
            for name, value in self.named.items()
        }  # fmt: skip
        embeddings = None if self.embeddings is None else self.embeddings[examples]
        return replace(self, named=named, embeddings=embeddings)

    def with_tensor(self, name: str, tensor: Tensor) -> Inputs:
        """The same with another tensor under a name."""
        return replace(self, named={**self.named, name: tensor})

    def with_ids(self, ids: Tensor) -> Inputs:
        """The same with other tokens."""
        return self.with_tensor(self.main, ids)

    def with_embeddings(self, embeddings: Tensor) -> Inputs:
        """The same with other embeddings, which reach the model in the place of its own."""
        if self.direct:
            named = {**self.named, self.main: embeddings}
            return replace(self, named=named, embeddings=embeddings)
        return replace(self, embeddings=embeddings, swapped=True)

    def with_changes(self, *changes: Change) -> Inputs:
        """The same with more changes to the attention of the model."""
        return replace(self, changes=(*self.changes, *changes))

    def need_embeddings(self) -> Tensor:
        """The embeddings, or an error that says how to name them."""
        if self.embeddings is None:
            raise UnavailableError(
                "no embedding was found: the model called no nn.Embedding with these ids. Name "
                "the module that gives (example, position, width), as embedding=model.embed"
            )
        return self.embeddings


def _of_examples(tensor: Tensor, count: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == count


def _main(named: Mapping[str, Any], input_name: str | None) -> str:
    """Which of the named inputs has the positions."""
    tensors = [name for name, value in named.items() if isinstance(value, Tensor)]
    if input_name is not None:
        if input_name not in tensors:
            raise RegardError(
                f"input_name={input_name!r}, but the inputs have {', '.join(tensors)}"
            )
        return input_name
    for name in _MAIN:
        if name in tensors:
            return name
    others = [name for name in tensors if name not in MASKS]
    if len(others) != 1:
        raise RegardError(
            f"which of the inputs has the tokens? There are {', '.join(tensors) or 'no tensors'}; "
            "name it, as input_name='tokens'"
        )
    return others[0]


def removable_of(
    inputs: Inputs, positions: int, special: Any, removable: Tensor | None
) -> tuple[Removed, Removed]:
    """Which positions may be removed, and which are real.

    Args:
        inputs: as the model takes them, and `special_tokens_mask` beside them if it is there.
        positions: how many there are.
        special: numbers of special tokens, or a tokenizer that has `all_special_ids`.
        removable: the answer itself, (example, position).
    """
    everywhere = torch.ones(len(inputs), positions, dtype=torch.bool, device=inputs.device)
    real = inputs.attended()
    if real is None or real.shape != everywhere.shape:
        real = everywhere
    if removable is not None:
        if removable.shape != everywhere.shape or removable.dtype != torch.bool:
            raise ShapeError(
                f"removable is {tuple(removable.shape)} {removable.dtype}, expected "
                f"{tuple(everywhere.shape)} torch.bool, True where a position may be removed"
            )
        return removable.to(inputs.device) & real, real
    marked = inputs.named.get("special_tokens_mask")
    if marked is not None:
        return real & (marked == 0), real
    if special is None:
        if inputs.main == "input_ids":
            raise RegardError(
                "which tokens are special? They draw attention and are not removed. Give "
                "special=tokenizer, special=[numbers], special=[] for none, or removable="
            )
        return real, real
    numbers = _numbers(special)
    return real & ~torch.isin(inputs.ids, numbers.to(inputs.device)), real


def _numbers(special: Any) -> Tensor:
    """Numbers of special tokens, from a list of them or a tokenizer."""
    try:
        return torch.tensor(list(getattr(special, "all_special_ids", special)), dtype=torch.long)
    except (TypeError, ValueError) as error:
        raise RegardError(
            f"special={special!r}, expected a tokenizer, or a list of token numbers"
        ) from error


def without_marks(inputs: Inputs) -> Inputs:
    """The same without `special_tokens_mask`, which models do not take."""
    named = {name: value for name, value in inputs.named.items() if name != "special_tokens_mask"}
    return replace(inputs, named=named)
