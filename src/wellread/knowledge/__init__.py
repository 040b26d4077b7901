"""What is lent to a model: entity vectors and the index of the nearest; maps between words, correlation, terms."""
