"""Elementwise operators: the table, its plans, NumPy references and tolerances."""
