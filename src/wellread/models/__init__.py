"""Models, one package per paper, and the layout of their saved folders."""
