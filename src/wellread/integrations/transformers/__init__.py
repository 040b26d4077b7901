"""Integration with Hugging Face transformers: Auto classes and the entity-linking pipeline."""
