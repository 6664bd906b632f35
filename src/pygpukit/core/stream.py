"""Streams and events: queues of work, points on them, and named streams."""

from __future__ import annotations

import threading

from pygpukit._pygpukit_rust import CudaGraph, Event, GraphPool, Stream, current_stream, default_stream

__all__ = ["CudaGraph", "Event", "GraphPool", "Stream", "StreamManager", "current_stream", "default_stream"]


class StreamManager:
    """Streams by name, made when first asked for.

    Examples
    --------
    >>> manager = StreamManager()
    >>> manager.get("copies") is manager.get("copies")
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}

    def get(self, name: str, priority: str | int = "normal") -> Stream:
        """The stream of this name; `priority` counts when it is made."""
        with self._lock:
            found = self._streams.get(name)
            if found is None:
                found = self._streams[name] = Stream(priority)
            return found

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the order of their making."""
        return tuple(self._streams)

    def synchronize(self) -> None:
        """Wait for all of them."""
        for stream in tuple(self._streams.values()):
            stream.synchronize()

    def close(self) -> None:
        """Wait for all of them and let them go."""
        self.synchronize()
        with self._lock:
            self._streams.clear()

    def __enter__(self) -> StreamManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
