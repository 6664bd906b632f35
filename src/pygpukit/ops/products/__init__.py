"""Products of vectors and tensors, and convolution."""
