"""How a model learns: recipes, one loop, a run is a folder."""
