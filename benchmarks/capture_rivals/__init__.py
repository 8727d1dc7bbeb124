"""What `benchmarks/capture.py` compares regard with, and how it measures."""
