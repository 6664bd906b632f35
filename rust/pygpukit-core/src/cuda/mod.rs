//! CUDA without a toolkit: libraries opened at run time, and the device on top of them.
