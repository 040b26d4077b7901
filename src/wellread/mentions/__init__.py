"""Where a text speaks of what is known: pieces and words, the matcher of names, candidates, named entities and phrases."""
