"""Embeddings, explanations and probes of trained models."""
