"""What is known: entities, their aliases and facts in one SQLite file, and readers for where they come from."""
