"""The runtime as Python sees it: devices, streams, events, graphs and memory."""
