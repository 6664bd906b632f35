"""Operators of audio."""
