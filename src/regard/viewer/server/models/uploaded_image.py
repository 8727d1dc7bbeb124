"""Checks of uploaded image files before a model sees them; only this file uses pillow."""

from __future__ import annotations

import io

from regard.errors import MissingExtraError
from regard.viewer.server.limits import Limits, Refusal, too_long

_FORMATS = ("PNG", "JPEG")


def checked_image(data: bytes, limits: Limits) -> bytes:
    """A PNG or JPEG file that can be decoded; the same bytes, or a refusal.

    The size is read from the header and checked before a pixel is decoded.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError("pillow", "viewer") from error
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image.size, limits)
            image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Refusal(
            413,
            "too_many_pixels",
            f"the image has too many pixels; at most {limits.image_pixels:,} are accepted",
            limit=limits.image_pixels,
        ) from error
    except UnidentifiedImageError as error:
        raise Refusal(415, "not_an_image", "the body is not a PNG or JPEG image") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise Refusal(422, "broken_image", "the image cannot be decoded") from error
    return data


def _check_pixels(size: tuple[int, int], limits: Limits) -> None:
    width, height = size
    if width * height > limits.image_pixels:
        raise too_long("the image", width * height, limits.image_pixels, "pixels")
