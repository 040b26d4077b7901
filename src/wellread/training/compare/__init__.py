"""Comparisons of training settings and of linkers."""
