"""Targets for `benchmarks/capture_packages.py`: models of packages outside transformers.

One file for each field, with a list `TARGETS`. The files are discovered, and import a package only
when one of its models is built.
"""
