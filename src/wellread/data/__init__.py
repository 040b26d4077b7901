"""Datasets: formats, readers, splits, corpora and synthetic text."""
