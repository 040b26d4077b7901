"""Mentions of entities in text: names of a knowledge base, candidates and annotators."""
