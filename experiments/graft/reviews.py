"""Sentences of film reviews with people's ratings, from the source package of vaderSentiment.

The wheel has no data; the source package (MIT) has that of Hutto and Gilbert 2014, "VADER: A
parsimonious rule-based model for sentiment analysis of social media text". It is fetched by pip,
and nothing of it is run:

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 -d FOLDER
"""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import NamedTuple

_PACKAGE = "vaderSentiment-3.3.2.tar.gz"
_INSIDE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_FILE = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"


class Review(NamedTuple):
    """A sentence, and whether its mean rating is good (1) or bad (0)."""

    text: str
    label: int


def load(folder: Path, train: int, test: int) -> tuple[list[Review], list[Review]]:
    """Sentences whose mean rating, from -4 to 4, is at least 1 away from 0; the same split always.

    A sentence that comes twice is taken once, so that none is on both sides.
    """
    with tarfile.open(folder / _PACKAGE) as package:
        inner = package.extractfile(_INSIDE)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as data:
            file = data.extractfile(_FILE)
            assert file is not None
            lines = file.read().decode("latin-1").splitlines()
    found = {}
    for line in lines:
        _, rating, text = line.split("\t", 2)
        if abs(float(rating)) >= 1:
            found[text.strip()] = int(float(rating) > 0)
    reviews = [Review(text, label) for text, label in sorted(found.items())]
    random.Random(0).shuffle(reviews)
    return reviews[:train], reviews[train : train + test]
