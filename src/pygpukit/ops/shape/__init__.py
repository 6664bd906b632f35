"""Shapes: views, joining, repeating, padding, and arrays made from numbers."""
