"""Linkers: text in, links to a knowledge base out."""
