"""Entity vectors, the index of nearest entities, and vectors trained on triples."""
