"""Operators as data: the table, its type rules, kernels' plans and NumPy references."""
