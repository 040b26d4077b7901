"""Synthetic linked text from a knowledge base."""
