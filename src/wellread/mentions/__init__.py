"""Where a text speaks of what is known: pieces and words, names, candidates, named entities and phrases."""
