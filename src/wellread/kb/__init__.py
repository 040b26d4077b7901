"""Knowledge bases: entities, aliases and triples in one SQLite file."""
