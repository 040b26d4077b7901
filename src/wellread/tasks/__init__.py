"""Tasks: examples, heads, losses and metrics, one file each."""

from wellread.io.extras import require

require("train", "training")
