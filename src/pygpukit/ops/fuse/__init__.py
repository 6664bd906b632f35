"""Fusion: Python functions of elementwise operators traced into one kernel."""
