"""Adaptation of a linker to a knowledge base and unlabelled texts."""
