"""Every exception and warning of PyGPUkit, in one tree.

Each class also inherits the builtin a NumPy user would catch, given in brackets::

    GPUKitError                     [Exception]
    |-- DriverError                 [RuntimeError]   a CUDA driver call failed, or the driver cannot be used
    |   `-- DriverNotFoundError     [RuntimeError]   libcuda is not there
    |-- NvrtcNotFoundError          [RuntimeError]   the run-time compiler is not there
    |-- KernelCompileError          [ValueError]     CUDA C++ source was refused; carries the log
    |-- KernelLaunchError           [ValueError]     wrong arguments, grid, block or shared memory
    |-- KernelFaultError            [RuntimeError]   a kernel did something wrong while it ran; the text is the report
    |-- OutOfMemoryError            [MemoryError]    the device or a pool's quota is full
    |-- ShapeError                  [ValueError]     shapes do not fit together
    |-- DTypeError                  [TypeError]      element types do not fit together
    |-- DeviceError                 [RuntimeError]   the device is missing or cannot do this
    |   |-- DeviceLostError         [RuntimeError]   a fault ended CUDA in this process
    |   `-- ForkError               [RuntimeError]   CUDA was initialised before fork()
    |-- GraphError                  [RuntimeError]   a capture or replay was misused
    |-- TransferCancelledError      [RuntimeError]   a copy between host and device was cancelled
    |-- AdmissionError              [RuntimeError]   a task was rejected; the text is the inequality that failed
    |   `-- DeadlineRefusedError    [RuntimeError]   a deadline of audio blocks cannot be held; the text has the numbers
    |-- TaskCancelledError          [RuntimeError]   a scheduled task was cancelled, and its work is refused
    |-- TaskProcessError            [RuntimeError]   the process of a task died before its function returned
    |-- MessageError                [TypeError]      a message class or a value in it is not what it must be
    |-- RingError                   [RuntimeError]   a ring kernel is unknown, or not in a state for this
    |   |-- MailboxFullError        [RuntimeError]   a mailbox is full and its policy is to reject
    |   |-- ActorFailedError        [RuntimeError]   the actor failed; the cause is what it raised
    |   `-- UndeliveredError        [RuntimeError]   a message will not be answered; the text says why
    |-- LoadError                   [OSError]        a file is too short for what is to be loaded, or cannot be read
    |-- ModelFileError              [OSError]        a model's file is cut off, damaged or of another kind
    |-- ModelLoadError              [ValueError]     tensors or settings of a model do not fit its architecture
    |-- ContextLengthError          [ValueError]     a prompt and its reply do not fit into the context
    |-- AudioFormatError            [ValueError]     an audio file is damaged, or of a format that nothing here reads
    |-- ParameterError              [ValueError]     a parameter of an audio function is not what it must be
    |-- MissingPackageError         [ImportError]    an optional Python package is not there
    `-- CacheError                  [OSError]        the kernel cache or a bundle is unusable

    FallbackWarning                 [RuntimeWarning] no GPU was found and the CPU device is used
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ActorFailedError",
    "AdmissionError",
    "AudioFormatError",
    "CacheError",
    "ContextLengthError",
    "DTypeError",
    "DeadlineRefusedError",
    "DeviceError",
    "DeviceLostError",
    "DriverError",
    "DriverNotFoundError",
    "FallbackWarning",
    "ForkError",
    "GPUKitError",
    "GraphError",
    "KernelCompileError",
    "KernelFaultError",
    "KernelLaunchError",
    "LoadError",
    "MailboxFullError",
    "MessageError",
    "MissingPackageError",
    "ModelFileError",
    "ModelLoadError",
    "NvrtcNotFoundError",
    "OutOfMemoryError",
    "ParameterError",
    "RingError",
    "ShapeError",
    "TaskCancelledError",
    "TaskProcessError",
    "TransferCancelledError",
    "UndeliveredError",
]


class GPUKitError(Exception):
    """Base of every exception PyGPUkit raises on purpose."""


class DriverError(GPUKitError, RuntimeError):
    """A CUDA driver call failed, or the driver is too old; the text names the call, the code and the remedy."""


class DriverNotFoundError(DriverError):
    """The CUDA driver library could not be opened; the text lists where it was searched."""


class NvrtcNotFoundError(GPUKitError, RuntimeError):
    """The NVRTC compiler library could not be opened; the text lists where it was searched and how to install it."""


class KernelCompileError(GPUKitError, ValueError):
    """NVRTC refused a kernel source.

    Parameters
    ----------
    message : str
        What a person reads: the offending source lines, the compiler's log and the options.
    log : str
        The compiler's log as it came.
    options : iterable of str
        The options the compiler was given.
    source : str
        The source that was compiled.
    line : int, optional
        Number of the first offending line of `source`, counted from 1; None where the log names none.

    Examples
    --------
    >>> error = KernelCompileError("line 2: identifier 'y' is undefined", log="...", line=2)
    >>> error.line
    2
    """

    def __init__(
        self,
        message: str,
        *,
        log: str = "",
        options: Iterable[str] = (),
        source: str = "",
        line: int | None = None,
    ) -> None:
        super().__init__(message)
        self.log = log
        self.options = tuple(options)
        self.source = source
        self.line = line


class KernelLaunchError(GPUKitError, ValueError):
    """A launch was refused before it reached the device; the text names the parameter."""


class KernelFaultError(GPUKitError, RuntimeError):
    """A kernel did something wrong while the CPU device ran it; the text says what, in which line and which thread."""


class OutOfMemoryError(GPUKitError, MemoryError):
    """The device or a pool's quota is full; the text says what was requested, what is free and who holds the rest."""


class ShapeError(GPUKitError, ValueError):
    """Shapes do not fit together, or do not fit the operation."""


class DTypeError(GPUKitError, TypeError):
    """Element types do not fit together, or the operation does not support them."""


class DeviceError(GPUKitError, RuntimeError):
    """The device does not exist, is not supported, or cannot do what was asked."""


class DeviceLostError(DeviceError):
    """A fault has ended CUDA in this process for good; the text is the report of the launch that caused it."""


class ForkError(DeviceError):
    """CUDA was initialised before fork(); the child process cannot use it."""


class GraphError(GPUKitError, RuntimeError):
    """A graph was captured or replayed in a way that cannot work."""


class AdmissionError(GPUKitError, RuntimeError):
    """A task was rejected; the text is the inequality that failed, with its numbers."""


class DeadlineRefusedError(AdmissionError):
    """A deadline of audio blocks cannot be held; the text is the inequality that failed, in numbers."""


class TaskCancelledError(GPUKitError, RuntimeError):
    """A scheduled task was cancelled or has ended, and its work is refused."""


class TaskProcessError(GPUKitError, RuntimeError):
    """The process of a task died before its function returned, or raised what cannot be told; the text says how."""


class TransferCancelledError(GPUKitError, RuntimeError):
    """A transfer was cancelled before all of it was on its way; what its target holds is undefined."""


class MessageError(GPUKitError, TypeError):
    """A message class has a field that cannot be sent, or a value is not of its field's type; the text names both."""


class RingError(GPUKitError, RuntimeError):
    """A ring kernel is unknown, or not in a state that allows what was asked; the text names it and its state."""


class MailboxFullError(RingError):
    """A mailbox is full and its policy is to reject; the text names the kernel and the size."""


class ActorFailedError(RingError):
    """An actor raised, and is not restarted any more; what it raised is the cause."""


class UndeliveredError(RingError):
    """The message that somebody waits an answer for was not delivered or not answered; the text has the reason."""


class LoadError(GPUKitError, OSError):
    """A file is shorter than what is to be loaded from it, or cannot be read; the text names it and the bytes."""


class ModelFileError(GPUKitError, OSError, ValueError):
    """A model's file is cut off, damaged, hostile or of another kind.

    Parameters
    ----------
    message : str
        File, offset and reason, as a person reads them.
    path : str
        The file.
    offset : int, optional
        Where in the file, in bytes.
    """

    def __init__(self, message: str, *, path: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class ModelLoadError(GPUKitError, ValueError):
    """The files of a model are sound, but do not make a model; the text lists everything that is missing or wrong."""


class ContextLengthError(GPUKitError, ValueError):
    """A prompt, or a prompt and its reply, do not fit into the context of a model; the text has the numbers."""


class AudioFormatError(GPUKitError, ValueError):
    """An audio file is damaged, or of a format that nothing here reads or writes; the text names it and the reason."""


class ParameterError(GPUKitError, ValueError):
    """A parameter of an audio function is not what it must be; the text has its name, its value and what is right."""


class MissingPackageError(GPUKitError, ImportError):
    """A Python package that is no part of the base install is needed; the text has the pip line that adds it."""


class CacheError(GPUKitError, OSError):
    """The kernel cache folder, a bundle or a file of saved keys and values cannot be read or written."""


class FallbackWarning(RuntimeWarning):
    """No usable GPU was found and the CPU device is used instead; warned once per process."""
