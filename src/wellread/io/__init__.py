"""Files, checksums, memory-mapped arrays and the console."""
