"""What a model is asked: examples, batches, losses, scores, one file a task family."""
