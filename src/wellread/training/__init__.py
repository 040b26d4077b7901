"""Training: recipes, one loop, checkpoints and run folders."""
