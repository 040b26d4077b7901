"""KnowBERT (Peters et al. 2019): a knowledge layer with its own entity linker."""
