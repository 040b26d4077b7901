"""Benchmarks of speed, memory and safety, with the bars of the docs: `python -m benchmarks`, see README.md."""
