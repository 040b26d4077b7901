"""Readers of published datasets, one file each."""
