"""Entity vectors and the index of nearest entities."""
