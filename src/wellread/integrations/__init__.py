"""Integrations of the linker: spaCy, transformers, folders of files and Spark."""
