"""The tree of PyDotCompute's exceptions, and what they keep."""

from __future__ import annotations

from typing import Any

import pytest

from pygpukit.compat.pydotcompute import exceptions as errors

CAUSE = ValueError("why")
PARENTS = {
    "KernelError": "PyDotComputeError",
    "KernelNotFoundError": "KernelError",
    "KernelStateError": "KernelError",
    "KernelAlreadyExistsError": "KernelError",
    "MessageError": "PyDotComputeError",
    "MessageSerializationError": "MessageError",
    "MessageDeserializationError": "MessageError",
    "QueueError": "PyDotComputeError",
    "QueueFullError": "QueueError",
    "QueueTimeoutError": "QueueError",
    "BufferError": "PyDotComputeError",
    "BufferNotAllocatedError": "BufferError",
    "BufferSyncError": "BufferError",
    "BackendError": "PyDotComputeError",
    "BackendNotAvailableError": "BackendError",
    "CUDAError": "BackendError",
    "MetalError": "BackendError",
    "MSLCompilationError": "MetalError",
    "CompilationError": "PyDotComputeError",
    "KernelCompilationError": "CompilationError",
    "ValidationError": "PyDotComputeError",
    "InvalidConfigurationError": "ValidationError",
    "TypeValidationError": "ValidationError",
}
FIELDS: dict[str, dict[str, Any]] = {
    "KernelNotFoundError": {"kernel_id": "k", "available": ["a"]},
    "KernelStateError": {"kernel_id": "k", "current_state": "ACTIVE", "operation": "launch"},
    "KernelAlreadyExistsError": {"kernel_id": "k"},
    "MessageSerializationError": {"message_type": int, "cause": CAUSE},
    "MessageDeserializationError": {"message_type": int, "cause": CAUSE},
    "QueueFullError": {"kernel_id": "k", "queue_size": 3},
    "QueueTimeoutError": {"kernel_id": "k", "timeout": 1.5, "operation": "get"},
    "BufferNotAllocatedError": {},
    "BufferSyncError": {"direction": "host", "cause": CAUSE},
    "BackendNotAvailableError": {"backend_name": "b", "reason": "why"},
    "MSLCompilationError": {"shader_name": "s", "error_message": "why"},
    "KernelCompilationError": {"kernel_name": "k", "cause": CAUSE},
    "InvalidConfigurationError": {"parameter": "p", "value": 3, "reason": "why"},
    "TypeValidationError": {"expected": int, "actual": str, "context": "here"},
}


@pytest.mark.parametrize("name", PARENTS)
def test_the_tree(name: str) -> None:
    assert getattr(errors, name).__bases__ == (getattr(errors, PARENTS[name]),)


def test_its_root() -> None:
    assert errors.PyDotComputeError.__bases__ == (Exception,)
    assert set(errors.__all__) == {"PyDotComputeError", *PARENTS}


@pytest.mark.parametrize("name", FIELDS)
def test_what_they_keep_and_say(name: str) -> None:
    fields = FIELDS[name]
    by_name, by_place = getattr(errors, name)(**fields), getattr(errors, name)(*fields.values())
    for error in (by_name, by_place):
        assert {field: getattr(error, field) for field in fields} == fields
        for value in fields.values():
            shown = value.__name__ if isinstance(value, type) else str(value[0] if isinstance(value, list) else value)
            assert shown in str(error)


def test_no_ids_are_known_by_default() -> None:
    assert errors.KernelNotFoundError("k").available == []


@pytest.mark.parametrize("name", sorted(set(PARENTS) - set(FIELDS)))
def test_the_others_take_a_text(name: str) -> None:
    assert str(getattr(errors, name)("text")) == "text"
