"""Which source word each target word belongs to: matrices of words, links, and their error."""

from regard.translate.alignment.align import Alignment, align
from regard.translate.alignment.choice import Choice, best_readings, choose, usual_head
from regard.translate.alignment.error_rate import ErrorRate, error_rate
from regard.translate.alignment.forced import ForcedAttention, Sentence, force
from regard.translate.alignment.heads import (
    AllHeads,
    Head,
    HeadAgreement,
    HeadError,
    by_agreement,
    by_error,
    head_named,
    heads_of,
)
from regard.translate.alignment.links import Links, above, flipped, links_of, mutual, strongest
from regard.translate.alignment.matrix import End, Matrix, Reading, read_rows, word_matrix
from regard.translate.alignment.pharaoh import (
    Gold,
    parse_links,
    read_links,
    write_links,
    write_pharaoh,
)
from regard.translate.alignment.preferred_head import preferred_head, save_preferred_head
from regard.translate.alignment.spaces import spaced_words, spaced_words_of
from regard.translate.alignment.symmetrise import (
    SYMMETRISERS,
    grow_diag,
    grow_diag_final,
    grow_diag_final_and,
    intersection,
    symmetrise,
    union,
)

__all__ = [
    "SYMMETRISERS",
    "Alignment",
    "AllHeads",
    "Choice",
    "End",
    "ErrorRate",
    "ForcedAttention",
    "Gold",
    "Head",
    "HeadAgreement",
    "HeadError",
    "Links",
    "Matrix",
    "Reading",
    "Sentence",
    "above",
    "align",
    "best_readings",
    "by_agreement",
    "by_error",
    "choose",
    "error_rate",
    "flipped",
    "force",
    "grow_diag",
    "grow_diag_final",
    "grow_diag_final_and",
    "head_named",
    "heads_of",
    "intersection",
    "links_of",
    "mutual",
    "parse_links",
    "preferred_head",
    "read_links",
    "read_rows",
    "save_preferred_head",
    "spaced_words",
    "spaced_words_of",
    "strongest",
    "symmetrise",
    "union",
    "usual_head",
    "word_matrix",
    "write_links",
    "write_pharaoh",
]
