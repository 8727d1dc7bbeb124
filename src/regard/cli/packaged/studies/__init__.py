"""Small models that `experiments/studies` trained; their weights come with regard."""

from collections.abc import Callable

from regard.cli.packaged.base import TextModel
from regard.cli.packaged.studies import characters as _characters
from regard.cli.packaged.studies import divisors as _divisors
from regard.cli.packaged.studies import induction as _induction
from regard.cli.packaged.studies import partners as _partners
from regard.cli.packaged.studies import reader as _reader

#: Studies with attention, as `study:NAME`, and how the model of each is loaded.
STUDIES: dict[str, Callable[[], TextModel]] = {
    "study:attention_explanation": _reader.reader,
    "study:common_divisors": _divisors.divisors,
    "study:induction": _induction.induction,
    "study:pairwise_convolution": _partners.partners,
    "study:simplified_blocks": _characters.characters,
}

#: The word at which an answer is read, for models that read it at the same word of every text.
ANSWER_WORDS = {
    "study:attention_explanation": _reader.SUMMARY,
    "study:common_divisors": _divisors.ANSWER,
}

#: An example text for each, the word of it to look at, and what that finds.
EXAMPLES: dict[str, tuple[str, str | None, str | None]] = {
    "study:attention_explanation": _reader.EXAMPLE,
    "study:common_divisors": _divisors.EXAMPLE,
    "study:induction": _induction.EXAMPLE,
    "study:pairwise_convolution": _partners.EXAMPLE,
    "study:simplified_blocks": _characters.EXAMPLE,
}
