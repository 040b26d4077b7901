"""Where the linkers that come with wellread are; known without torch."""

from pathlib import Path

WEIGHTS = Path(__file__).parent.parent / "weights"
SENSES = WEIGHTS / "knowbert-wordnet-minilm"
"""The linker of WordNet's senses (`model="knowbert"`)."""
