"""What issue and docs claim of speed, memory and safety, measured: `python -m benchmarks`, see README.md."""
