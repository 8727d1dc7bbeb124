"""Data flow: what is known about the numbers of a run, followed from operator to operator."""
