"""PyDotCompute's exceptions. What the ring raises inside of an adapter is the cause of one of these."""

from __future__ import annotations

__all__ = [
    "BackendError",
    "BackendNotAvailableError",
    "BufferError",
    "BufferNotAllocatedError",
    "BufferSyncError",
    "CUDAError",
    "CompilationError",
    "InvalidConfigurationError",
    "KernelAlreadyExistsError",
    "KernelCompilationError",
    "KernelError",
    "KernelNotFoundError",
    "KernelStateError",
    "MSLCompilationError",
    "MessageDeserializationError",
    "MessageError",
    "MessageSerializationError",
    "MetalError",
    "PyDotComputeError",
    "QueueError",
    "QueueFullError",
    "QueueTimeoutError",
    "TypeValidationError",
    "ValidationError",
]


class PyDotComputeError(Exception):
    """Base of all of them."""


class KernelError(PyDotComputeError):
    """Something about a ring kernel."""


class KernelNotFoundError(KernelError):
    """No ring kernel has this id."""

    def __init__(self, kernel_id: str, available: list[str] | None = None) -> None:
        self.kernel_id = kernel_id
        self.available = list(available or [])
        known = ", ".join(map(repr, self.available)) or "none"
        super().__init__(f"there is no ring kernel {kernel_id!r} here; launch it first. Known are: {known}")


class KernelStateError(KernelError):
    """The state of a ring kernel does not allow this."""

    def __init__(self, kernel_id: str, current_state: str, operation: str) -> None:
        self.kernel_id = kernel_id
        self.current_state = current_state
        self.operation = operation
        super().__init__(f"ring kernel {kernel_id!r} is {current_state}, which does not allow: {operation}")


class KernelAlreadyExistsError(KernelError):
    """A ring kernel of this id was launched before."""

    def __init__(self, kernel_id: str) -> None:
        self.kernel_id = kernel_id
        super().__init__(f"a ring kernel {kernel_id!r} already exists; terminate it before it is launched again")


class MessageError(PyDotComputeError):
    """Something about a message."""


class MessageSerializationError(MessageError):
    """A message has a value that has no bytes."""

    def __init__(self, message_type: type, cause: Exception) -> None:
        self.message_type = message_type
        self.cause = cause
        super().__init__(f"a message of {_name(message_type)} has no bytes: {cause}")


class MessageDeserializationError(MessageError):
    """Bytes are not those of a message."""

    def __init__(self, message_type: type, cause: Exception) -> None:
        self.message_type = message_type
        self.cause = cause
        super().__init__(f"the bytes are not those of a {_name(message_type)}: {cause}")


class QueueError(PyDotComputeError):
    """Something about a message queue."""


class QueueFullError(QueueError):
    """A queue is full."""

    def __init__(self, kernel_id: str, queue_size: int) -> None:
        self.kernel_id = kernel_id
        self.queue_size = queue_size
        super().__init__(f"the queue of {kernel_id!r} is full with {queue_size} messages")


class QueueTimeoutError(QueueError):
    """The time to wait for a message, or for room, is over."""

    def __init__(self, kernel_id: str, timeout: float, operation: str) -> None:
        self.kernel_id = kernel_id
        self.timeout = timeout
        self.operation = operation
        super().__init__(f"{operation} on the queue of {kernel_id!r} was not done within {timeout} s")


class BufferError(PyDotComputeError):
    """Something about a unified buffer."""


class BufferNotAllocatedError(BufferError):
    """A buffer has no memory yet."""

    def __init__(self) -> None:
        super().__init__("the buffer has no memory yet; call allocate() before it is read or marked")


class BufferSyncError(BufferError):
    """A buffer could not be copied between host and device."""

    def __init__(self, direction: str, cause: Exception) -> None:
        self.direction = direction
        self.cause = cause
        super().__init__(f"the buffer could not be copied ({direction}): {cause}")


class BackendError(PyDotComputeError):
    """Something about a backend."""


class BackendNotAvailableError(BackendError):
    """A backend cannot be used on this machine."""

    def __init__(self, backend_name: str, reason: str) -> None:
        self.backend_name = backend_name
        self.reason = reason
        super().__init__(f"backend {backend_name!r} cannot be used: {reason}")


class CUDAError(BackendError):
    """CUDA failed."""


class MetalError(BackendError):
    """Metal failed, or is not there."""


class MSLCompilationError(MetalError):
    """A Metal shader was refused."""

    def __init__(self, shader_name: str, error_message: str) -> None:
        self.shader_name = shader_name
        self.error_message = error_message
        super().__init__(f"Metal shader {shader_name!r} was refused: {error_message}")


class CompilationError(PyDotComputeError):
    """A kernel could not be compiled."""


class KernelCompilationError(CompilationError):
    """The kernel of this name could not be compiled."""

    def __init__(self, kernel_name: str, cause: Exception) -> None:
        self.kernel_name = kernel_name
        self.cause = cause
        super().__init__(f"kernel {kernel_name!r} could not be compiled: {cause}")


class ValidationError(PyDotComputeError):
    """A value was refused."""


class InvalidConfigurationError(ValidationError):
    """A parameter has a value that it must not have."""

    def __init__(self, parameter: str, value: object, reason: str) -> None:
        self.parameter = parameter
        self.value = value
        self.reason = reason
        super().__init__(f"{parameter} must not be {value!r}: {reason}")


class TypeValidationError(ValidationError):
    """A value or a class is not of the type it must be."""

    def __init__(self, expected: type, actual: type, context: str) -> None:
        self.expected = expected
        self.actual = actual
        self.context = context
        super().__init__(f"{context} must be {_name(expected)}, not {_name(actual)}")


def _name(kind: object) -> str:
    return str(getattr(kind, "__name__", kind))
