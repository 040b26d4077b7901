"""Metrics and statistical tests; no torch."""
