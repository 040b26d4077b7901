"""How good it is: scores with their intervals. Needs numpy, never torch."""
