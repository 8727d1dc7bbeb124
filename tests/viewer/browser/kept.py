"""Screenshots beside the kept ones, a quarter of their size, with a tolerance.

Fonts and their smoothing differ a little between machines; a view that is gone, in another colour
or in another place does not pass. `REGARD_UPDATE_SCREENSHOTS=1` writes them anew: look at them.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image, ImageChops, ImageStat

FOLDER = Path(__file__).parents[1] / "screenshots"
TOLERANCE = 3.0  #: mean difference over a whole picture, of 255
PLACE = 40.0  #: mean difference in one square of 16 pixels of the small picture
SCALE, SQUARE = 4, 16


def small(png: bytes) -> Image.Image:
    """A screenshot at a quarter of its size."""
    full = Image.open(io.BytesIO(png)).convert("RGB")
    return full.resize((full.width // SCALE, full.height // SCALE), Image.Resampling.BOX)


def difference(first: Image.Image, second: Image.Image) -> tuple[float, float]:
    """Mean absolute difference over the whole, and in the square where it is largest."""
    if first.size != second.size:
        return 255.0, 255.0
    apart = ImageChops.difference(first, second).convert("L")
    squares = apart.resize(
        (max(1, apart.width // SQUARE), max(1, apart.height // SQUARE)), Image.Resampling.BOX
    )
    return ImageStat.Stat(apart).mean[0], float(squares.getextrema()[1])


def same(first: bytes, second: bytes) -> bool:
    """Whether two screenshots of one machine show the same: edges are not smoothed bit for bit."""
    pictures = [Image.open(io.BytesIO(png)).convert("RGB") for png in (first, second)]
    apart = ImageChops.difference(*pictures)
    return max(high for _, high in apart.getextrema()) <= 24


def complaint(name: str, png: bytes, place: Path) -> str | None:
    """What is wrong with a screenshot, or None; `place` is where the new one is left."""
    kept, now = FOLDER / f"{name}.png", small(png)
    if os.environ.get("REGARD_UPDATE_SCREENSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        now.save(kept, optimize=True)
        return None
    if not kept.exists():
        return f"{kept} is not there: REGARD_UPDATE_SCREENSHOTS=1 writes it"
    whole, square = difference(Image.open(kept).convert("RGB"), now)
    if whole <= TOLERANCE and square <= PLACE:
        return None
    now.save(place / f"{name}.png")
    return (
        f"{name} differs by {whole:.1f} of 255 (at most {TOLERANCE}), in one place by {square:.1f} "
        f"(at most {PLACE}); it lies at {place / name}.png"
    )
