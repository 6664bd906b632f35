//! A stand-in for libcuda in host memory, for tests.
