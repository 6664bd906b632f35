"""CUDA C++ sources of the built-in operators; data for the run-time compiler, no Python."""
