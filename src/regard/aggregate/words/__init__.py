"""Pieces of words to words."""
