"""Mapping of strings without a text around them, such as the cells of a column, to the entities of a KB."""
