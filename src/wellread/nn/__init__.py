"""Bricks: tensors in, tensors out; they know no knowledge base."""
