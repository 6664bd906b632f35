"""Sorting and searching: sort, topk, searchsorted, sets, counts and quantiles."""
