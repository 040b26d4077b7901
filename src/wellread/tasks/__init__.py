"""Tasks: examples, heads, losses and metrics, one file each."""
