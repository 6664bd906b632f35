"""Decorators of actors and kernels, the registry, and checks of what they are given."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from pygpukit.compat.pydotcompute.decorators.kernel import (
    KernelRegistry,
    cuda_source,
    get_kernel_registry,
    gpu_kernel,
    kernel,
)
from pygpukit.compat.pydotcompute.decorators.ring_kernel import (
    RingKernelBuilder,
    get_ring_kernel_meta,
    is_ring_kernel,
    ring_kernel,
)
from pygpukit.compat.pydotcompute.decorators.validators import (
    RuntimeValidator,
    get_validator,
    validate_backpressure_strategy,
    validate_block_size,
    validate_config,
    validate_grid_size,
    validate_message,
    validate_priority,
    validate_queue_size,
)
from pygpukit.compat.pydotcompute.exceptions import InvalidConfigurationError, TypeValidationError
from pygpukit.compat.pydotcompute.ring_kernels.message import RingKernelMessage, message
from pygpukit.compat.pydotcompute.ring_kernels.runtime import get_registered_kernel

CONFIG = {
    "input_queue_size": 4096,
    "output_queue_size": 4096,
    "grid_size": 1,
    "block_size": 256,
    "backpressure_strategy": "block",
}


async def function(ctx: Any) -> Any:
    """What it does."""
    return ctx


def test_an_actor_without_parentheses() -> None:
    actor = ring_kernel(function)
    assert is_ring_kernel(actor)
    assert not is_ring_kernel(function)
    assert get_ring_kernel_meta(function) is None
    assert get_ring_kernel_meta(actor) == {
        "kernel_id": "function",
        "input_type": None,
        "output_type": None,
        "config": CONFIG,
    }
    assert get_registered_kernel("function")["config"] == CONFIG
    assert (actor.__name__, actor.__doc__) == ("function", "What it does.")
    assert inspect.iscoroutinefunction(actor)
    assert asyncio.run(actor(5)) == 5


def test_an_actor_with_options() -> None:
    actor = ring_kernel(
        kernel_id="optional",
        input_type=RingKernelMessage,
        output_type=int,
        queue_size=5,
        output_queue_size=9,
        grid_size=4,
        block_size=512,
        backpressure="reject",
        auto_register=False,
    )(function)
    meta = get_ring_kernel_meta(actor)
    assert meta["config"] == {
        "input_queue_size": 5,
        "output_queue_size": 9,
        "grid_size": 4,
        "block_size": 512,
        "backpressure_strategy": "reject",
    }
    assert (meta["kernel_id"], meta["input_type"], meta["output_type"]) == ("optional", RingKernelMessage, int)
    assert get_registered_kernel("optional") is None


def test_a_builder() -> None:
    builder = RingKernelBuilder("built")
    with pytest.raises(ValueError, match="built"):
        builder.build()
    steps = {
        "input_type": int,
        "output_type": str,
        "queue_size": 7,
        "output_queue_size": 8,
        "grid_size": 2,
        "block_size": 64,
        "backpressure": "drop_oldest",
        "handler": function,
    }
    for name, value in steps.items():
        assert getattr(builder, f"with_{name}")(value) is builder
    meta = get_ring_kernel_meta(builder.build())
    assert (meta["kernel_id"], meta["input_type"], meta["output_type"]) == ("built", int, str)
    assert meta["config"] == {
        "input_queue_size": 7,
        "output_queue_size": 8,
        "grid_size": 2,
        "block_size": 64,
        "backpressure_strategy": "drop_oldest",
    }
    assert get_registered_kernel("built")["input_type"] is int
    assert get_ring_kernel_meta(builder.with_input_queue_size(3).build())["config"]["input_queue_size"] == 3
    assert "built" in repr(builder)


def test_kernels_are_called_as_functions() -> None:
    @kernel
    def add(x: int, y: int) -> int:
        """Adds."""
        return x + y

    @kernel(name="other", device="cpu", fastmath=False, cache=False)
    def double(x: int) -> int:
        return 2 * x

    assert (add(1, 2), double(4)) == (3, 8)
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert add._kernel_meta == {"name": "add", "device": "auto", "fastmath": True, "cache": True, "compiled": None}
    assert double._kernel_meta["name"] == "other"


def test_kernels_for_the_gpu_are_defined_anywhere() -> None:
    @gpu_kernel
    def bare(x: Any) -> None: ...

    @gpu_kernel(name="n", signature="void(float32[:])", fastmath=False, debug=True, cache=False)
    def full(x: Any) -> None: ...

    assert bare.__name__ == "bare"
    assert (full._kernel_meta["name"], full._kernel_meta["signature"]) == ("n", "void(float32[:])")


def test_source_is_noted() -> None:
    @cuda_source("void f() {}")
    def f(x: int) -> int:
        return x

    assert f.__cuda_source__ == "void f() {}"
    assert f(3) == 3


def test_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelRegistry, "_instance", None)
    registry = KernelRegistry()
    assert registry is KernelRegistry() is get_kernel_registry()
    registry.register("a", function)
    registry.register("b", print)
    assert registry.get("a") is function
    assert registry.get("missing") is None
    assert sorted(registry.list()) == ["a", "b"]
    with pytest.raises(ValueError, match="'a'"):
        registry.register("a", print)
    registry.register("a", print, overwrite=True)
    assert registry.get("a") is print
    registry.clear()
    assert registry.list() == []


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (validate_queue_size, 1, 1),
        (validate_queue_size, 1_000_000, 1_000_000),
        (validate_grid_size, 64, (64,)),
        (validate_grid_size, (1, 2, 3), (1, 2, 3)),
        (validate_grid_size, (), ()),
        (validate_grid_size, (65535, 65535, 65535), (65535, 65535, 65535)),
        (validate_block_size, 256, (256,)),
        (validate_block_size, (8, 8, 16), (8, 8, 16)),
        (validate_block_size, (), ()),
        (validate_priority, 0, 0),
        (validate_priority, 255, 255),
        (validate_backpressure_strategy, "block", "block"),
        (validate_backpressure_strategy, "reject", "reject"),
        (validate_backpressure_strategy, "drop_oldest", "drop_oldest"),
    ],
)
def test_what_is_accepted(check: Any, value: Any, expected: Any) -> None:
    assert check(value) == expected


@pytest.mark.parametrize(
    ("check", "value"),
    [
        *((validate_queue_size, value) for value in (0, -1, 1_000_001, 3.14, "5")),
        *((validate_grid_size, value) for value in (0, (0, 64), (-1,), (2, 2, 2, 2), "text", (1.5,))),
        *((validate_block_size, value) for value in (0, 2048, (32, 64), (0,), (2, 2, 2, 2), "text")),
        *((validate_priority, value) for value in (-1, 256, 3.14)),
        *((validate_backpressure_strategy, value) for value in ("invalid", "BLOCK", "drop_new", 3)),
    ],
)
def test_what_is_refused(check: Any, value: Any) -> None:
    with pytest.raises(InvalidConfigurationError) as caught:
        check(value)
    assert caught.value.value == value


def test_names_and_limits_of_checks() -> None:
    assert validate_block_size((32, 64), max_threads=2048) == (32, 64)
    for check in (validate_queue_size, validate_grid_size, validate_block_size):
        with pytest.raises(InvalidConfigurationError, match="mine") as caught:
            check(-1, name="mine")
        assert caught.value.parameter == "mine"


def test_message_classes() -> None:
    @message
    class Known:
        value: int = 0

    @dataclass
    class Mute:
        value: int = 0

    class Plain:
        value = 0

    assert validate_message(Known) is Known
    with pytest.warns(UserWarning, match="serialize"):
        assert validate_message(Mute) is Mute
    with pytest.raises(TypeValidationError):
        validate_message(Plain)
    assert RuntimeValidator().validate_message_type(Mute) is True
    with pytest.raises(TypeValidationError):
        RuntimeValidator(strict=True).validate_message_type(Plain)
    lenient = RuntimeValidator(strict=False)
    assert (lenient.strict, lenient.validate_message_type(Plain), len(lenient.warnings)) == (False, False, 1)
    lenient.warnings.clear()
    assert len(lenient.warnings) == 1
    lenient.clear_warnings()
    assert lenient.warnings == []


def test_arguments_with_names_of_fields_are_checked() -> None:
    @dataclass
    class Config:
        n: int
        names: list[str]
        ratio: float | None = None

    @validate_config(Config)
    def use(n: Any, other: Any = None, names: Any = (), ratio: Any = None) -> Any:
        return n

    assert use(3, "anything", names=["a"]) == 3
    assert use(n=3, names=[], ratio=None) == 3
    for given in ({"n": "3"}, {"n": 3, "names": [1]}, {"n": 3, "names": "ab"}, {"n": 3, "ratio": "x"}):
        with pytest.raises(TypeValidationError):
            use(**given)
    assert use.__name__ == "use"


def test_configurations_of_kernels() -> None:
    given = {"queue_size": 10, "grid_size": 4, "block_size": (8, 8), "backpressure_strategy": "block", "other": 1}
    found = RuntimeValidator().validate_kernel_config(given)
    assert found == {
        "queue_size": 10,
        "grid_size": (4,),
        "block_size": (8, 8),
        "backpressure_strategy": "block",
    }
    sizes = {"input_queue_size": 3, "output_queue_size": 4}
    assert RuntimeValidator().validate_kernel_config(sizes) == sizes
    with pytest.raises(InvalidConfigurationError, match="input_queue_size"):
        RuntimeValidator().validate_kernel_config({"input_queue_size": 0})


def test_the_one_validator() -> None:
    assert get_validator() is get_validator(strict=False)
    assert isinstance(get_validator(), RuntimeValidator)
