"""Functions made of elementwise operators and views, and questions about element types, under NumPy's names."""
