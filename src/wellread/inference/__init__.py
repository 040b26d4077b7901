"""Embeddings, explanations and probes of trained models."""

from wellread.io.extras import require

require("train", "embedding and explaining texts with an encoder")
