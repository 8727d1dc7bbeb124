"""The page of a corpus: every head in a grid, its numbers, and its strongest texts."""

from regard.viewer.corpus_report.document import CorpusRun, corpus_report

__all__ = ["CorpusRun", "corpus_report"]
