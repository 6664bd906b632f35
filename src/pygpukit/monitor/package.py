"""prometheus-client, where it is installed."""

from __future__ import annotations

from typing import Any

from pygpukit.errors import MissingPackageError

__all__ = ["prometheus"]


def prometheus() -> Any:
    """Return the package; MissingPackageError without it."""
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise MissingPackageError(
            f'prometheus-client makes the metrics ({error}): run pip install "pygpukit[metrics]"'
        ) from None
    return prometheus_client
