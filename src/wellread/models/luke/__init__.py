"""LUKE (Yamada et al. 2020): entities as tokens with entity-aware attention."""
