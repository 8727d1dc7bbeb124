"""An image and a sound, both free of copyright."""

from pathlib import Path

_HERE = Path(__file__).parent

#: Chelsea the cat, photographed by Stéfan van der Walt, CC0; cut square from scikit-image's data.
CAT = _HERE / "cat.jpg"

#: "He was not an ill-disposed young man": three seconds at 16 kHz with 8 bits a sample. From Jane
#: Austen, Sense and Sensibility, chapter 1, read for LibriVox, in the public domain; as cut in the
#: test data of pocketsphinx 5.1.1 (librivox/…-0880.wav).
SPEECH = _HERE / "speech.wav"
