"""What `benchmarks/viewer.py` compares the page with, and how it measures in a browser."""
