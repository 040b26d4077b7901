"""What is lent to a model: entity vectors, the index of nearest entities."""
