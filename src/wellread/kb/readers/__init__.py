"""Readers of the sources that knowledge bases are built from."""
