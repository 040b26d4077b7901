"""Embeddings, explanations and probes of trained models."""

from wellread.io.extras import require

require("train", "inference beyond linking")
