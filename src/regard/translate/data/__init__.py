"""Parallel sentences: read, cleaned, split, put into batches."""

from regard.translate.data.batches import (
    Batch,
    Examples,
    Padding,
    batches,
    collate,
    padded,
    padding,
)
from regard.translate.data.clean import Cleaner, Cleaning, CleaningReport, CleaningResult, clean
from regard.translate.data.pairs import (
    JsonLinesFile,
    Pair,
    PairFile,
    ParallelFiles,
    Shards,
    TableFile,
    not_empty,
    pair_file,
    read_pairs,
)
from regard.translate.data.split import Split, split

__all__ = [
    "Batch",
    "Cleaner",
    "Cleaning",
    "CleaningReport",
    "CleaningResult",
    "Examples",
    "JsonLinesFile",
    "Padding",
    "Pair",
    "PairFile",
    "ParallelFiles",
    "Shards",
    "Split",
    "TableFile",
    "batches",
    "clean",
    "collate",
    "not_empty",
    "padded",
    "padding",
    "pair_file",
    "read_pairs",
    "split",
]
