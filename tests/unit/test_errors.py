"""The exception tree: builtins a NumPy user catches, the drawing in the docstring, pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from pygpukit import errors

BUILTINS = {
    "AudioFormatError": ValueError,
    "CacheError": OSError,
    "ContextLengthError": ValueError,
    "DTypeError": TypeError,
    "DeviceError": RuntimeError,
    "DeviceLostError": RuntimeError,
    "DriverError": RuntimeError,
    "DriverNotFoundError": RuntimeError,
    "FallbackWarning": RuntimeWarning,
    "ForkError": RuntimeError,
    "GPUKitError": Exception,
    "GraphError": RuntimeError,
    "KernelCompileError": ValueError,
    "KernelFaultError": RuntimeError,
    "KernelLaunchError": ValueError,
    "LoadError": OSError,
    "MissingPackageError": ImportError,
    "ModelFileError": OSError,
    "ModelLoadError": ValueError,
    "NvrtcNotFoundError": RuntimeError,
    "OutOfMemoryError": MemoryError,
    "ParameterError": ValueError,
    "ShapeError": ValueError,
    "AdmissionError": RuntimeError,
    "DeadlineRefusedError": RuntimeError,
    "TaskCancelledError": RuntimeError,
    "TaskProcessError": RuntimeError,
    "TransferCancelledError": RuntimeError,
    "MessageError": TypeError,
    "RingError": RuntimeError,
    "MailboxFullError": RuntimeError,
    "ActorFailedError": RuntimeError,
    "UndeliveredError": RuntimeError,
}


def test_every_class_is_exported_and_inherits_its_builtin() -> None:
    assert set(errors.__all__) == set(BUILTINS)
    for name, builtin in BUILTINS.items():
        cls = getattr(errors, name)
        assert issubclass(cls, builtin), name
        assert cls.__doc__, name
        assert issubclass(cls, errors.GPUKitError) != issubclass(cls, Warning), name


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Names, depth and builtins of the drawing agree with the classes."""
    drawn = re.findall(r"^    ((?:[|` ]   |[|`]-- )*)(\w+) +\[(\w+)\]", errors.__doc__ or "", re.MULTILINE)
    assert {name for _, name, _ in drawn} == set(errors.__all__)
    chain: list[str] = []
    for indent, name, builtin in drawn:
        depth = len(indent) // 4
        chain[depth:] = [name]
        cls = getattr(errors, name)
        assert BUILTINS[name].__name__ == builtin
        if depth:
            assert cls.__bases__[0] is getattr(errors, chain[depth - 1]), name


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_errors_survive_pickle_and_copy(name: str) -> None:
    error = getattr(errors, name)("what happened")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == "what happened"


def test_compile_error_carries_what_the_compiler_said() -> None:
    error = errors.KernelCompileError("bad", log="k.cu(2): error", options=["-O3"], source="int\nx", line=2)
    for twin in (error, pickle.loads(pickle.dumps(error))):
        assert (str(twin), twin.log, twin.options, twin.source, twin.line) == (
            "bad",
            "k.cu(2): error",
            ("-O3",),
            "int\nx",
            2,
        )
    plain = errors.KernelCompileError("bad")
    assert (plain.log, plain.options, plain.source, plain.line) == ("", (), "", None)
