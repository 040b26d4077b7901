"""Infusion of knowledge into pretrained encoders."""

from wellread.io.extras import require

require("train", "infusion")
