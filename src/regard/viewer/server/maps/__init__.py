"""Attention maps that the page asks for: stored traces, and tiles computed on demand."""
