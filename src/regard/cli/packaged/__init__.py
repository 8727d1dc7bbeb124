"""Trained models that come inside installable packages; nothing is downloaded.

Other people's names of weights and files are known here and nowhere else.
"""

from regard.cli.packaged.base import (
    EncodedText,
    LookResult,
    TextModel,
    encoder_for,
    folder,
    quietly,
    transformers,
)
from regard.cli.packaged.samples import CAT, SPEECH
from regard.cli.packaged.speech import Listener, whisper
from regard.cli.packaged.text import _byte_pairs as _byte_pairs
from regard.cli.packaged.text import minilm, rxnmapper, smollm2
from regard.cli.packaged.translation import PackagedTranslator, shipped_translator
from regard.cli.packaged.vision import Segmenter, mobilesam

__all__ = [
    "CAT",
    "SPEECH",
    "EncodedText",
    "Listener",
    "LookResult",
    "PackagedTranslator",
    "Segmenter",
    "TextModel",
    "encoder_for",
    "folder",
    "minilm",
    "mobilesam",
    "quietly",
    "rxnmapper",
    "shipped_translator",
    "smollm2",
    "transformers",
    "whisper",
]
