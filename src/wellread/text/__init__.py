"""Words, tokens and windows of a text, with exact character offsets."""
