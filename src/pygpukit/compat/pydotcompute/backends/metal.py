"""`MetalBackend`: its name only, since there is no Metal here."""

from __future__ import annotations

from pygpukit.compat.pydotcompute.exceptions import BackendNotAvailableError

__all__ = ["MetalBackend"]


class MetalBackend:
    """Refuses to be made."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise BackendNotAvailableError("metal", "this runtime has CUDA and a CPU device")
