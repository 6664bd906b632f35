"""Architectures, one file each."""
