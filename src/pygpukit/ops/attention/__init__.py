"""Attention and the caches of keys and values it reads."""
