"""An example of plugins for pygpukit.llm: an architecture and a processor."""
