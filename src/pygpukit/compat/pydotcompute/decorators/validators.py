"""Checks of configurations, message classes and arguments."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from pygpukit.compat.pydotcompute.exceptions import InvalidConfigurationError, TypeValidationError
from pygpukit.ring import Backpressure

__all__ = [
    "RuntimeValidator",
    "get_validator",
    "validate_backpressure_strategy",
    "validate_block_size",
    "validate_config",
    "validate_grid_size",
    "validate_message",
    "validate_priority",
    "validate_queue_size",
]

F = TypeVar("F", bound=Callable[..., Any])

_LARGEST_QUEUE = 1_000_000
_STRATEGIES = [one.value for one in Backpressure if one is not Backpressure.DROP_NEW]


def validate_message(cls: type) -> type:
    """Refuse a class that is no dataclass, and warn of one without ``serialize``."""
    if not dataclasses.is_dataclass(cls):
        raise TypeValidationError(_Dataclass, cls, "a message class")
    if not hasattr(cls, "serialize"):
        warnings.warn(f"{cls.__name__} has no serialize(); decorate it with @message", UserWarning, stacklevel=2)
    return cls


def validate_config(config_cls: type) -> Callable[[F], F]:
    """Check arguments of a function that have the names of a dataclass's fields against the fields' types."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name, expected in _hints(config_cls).items():
                if name in given and not _check_type(given[name], expected):
                    raise TypeValidationError(expected, type(given[name]), f"argument {name!r}")
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate


def validate_queue_size(size: int, name: str = "queue_size") -> int:
    """An int from 1 to 1,000,000."""
    return _in_range(size, name, 1, _LARGEST_QUEUE)


def validate_priority(priority: int) -> int:
    """An int from 0 to 255."""
    return _in_range(priority, "priority", 0, 255)


def validate_grid_size(size: int | tuple[int, ...], name: str = "grid_size") -> tuple[int, ...]:
    """A tuple of at most three ints from 1; an int becomes one."""
    sizes: Any = (size,) if isinstance(size, int) else size
    if not isinstance(sizes, tuple):
        raise InvalidConfigurationError(name, size, "it is to be an int or a tuple of ints")
    if len(sizes) > 3:
        raise InvalidConfigurationError(name, size, "there are at most three dimensions")
    if not all(isinstance(one, int) and one >= 1 for one in sizes):
        raise InvalidConfigurationError(name, size, "each dimension is to be an int of at least 1")
    checked: tuple[int, ...] = sizes
    return checked


def validate_block_size(
    size: int | tuple[int, ...], name: str = "block_size", max_threads: int = 1024
) -> tuple[int, ...]:
    """As `validate_grid_size`, and at most `max_threads` in all."""
    sizes = validate_grid_size(size, name)
    threads = 1
    for one in sizes:
        threads *= one
    if threads > max_threads:
        raise InvalidConfigurationError(name, size, f"a block has at most {max_threads} threads, and this {threads}")
    return sizes


def validate_backpressure_strategy(strategy: str) -> str:
    """One of ``block``, ``reject`` and ``drop_oldest``."""
    if strategy not in _STRATEGIES:
        raise InvalidConfigurationError("backpressure_strategy", strategy, f"it is to be one of {_STRATEGIES}")
    return strategy


class RuntimeValidator:
    """Checks of a runtime's messages and configurations.

    Parameters
    ----------
    strict : bool
        Raise for a class that is no message; else note a warning.
    """

    def __init__(self, strict: bool = True) -> None:
        self._strict = strict
        self._warnings: list[str] = []

    @property
    def strict(self) -> bool:
        """Does it raise for message classes?"""
        return self._strict

    @property
    def warnings(self) -> list[str]:
        """What was noted instead of raised."""
        return list(self._warnings)

    def validate_message_type(self, cls: type) -> bool:
        """Is it a dataclass? `TypeValidationError` if not and it is strict."""
        if dataclasses.is_dataclass(cls):
            return True
        if self._strict:
            raise TypeValidationError(_Dataclass, cls, "a message class")
        self._warnings.append(f"{cls.__name__} is no dataclass")
        return False

    def validate_kernel_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The known keys of a configuration with checked values; sizes of grid and block become tuples."""
        checks: dict[str, Callable[[Any], Any]] = {
            **{
                name: functools.partial(validate_queue_size, name=name)
                for name in ("queue_size", "input_queue_size", "output_queue_size")
            },
            "grid_size": validate_grid_size,
            "block_size": validate_block_size,
            "backpressure_strategy": validate_backpressure_strategy,
        }
        return {name: check(config[name]) for name, check in checks.items() if name in config}

    def clear_warnings(self) -> None:
        """Forget what was noted."""
        self._warnings.clear()


_validator: RuntimeValidator | None = None


def get_validator(strict: bool = True) -> RuntimeValidator:
    """The one validator, made at the first call."""
    global _validator
    if _validator is None:
        _validator = RuntimeValidator(strict)
    return _validator


def _in_range(value: Any, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidConfigurationError(name, value, f"it is to be an int from {low} to {high}")
    return value


class _Dataclass:
    """Named in errors as what a class is to be."""


_Dataclass.__name__ = "a dataclass"


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except NameError:
        # Annotations of names that are not there say nothing.
        return {}


def _check_type(value: Any, expected: Any) -> bool:
    """Is a value of an annotated type? Items of containers are looked at too."""
    origin, args = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any or isinstance(expected, str | TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_check_type(value, one) for one in args)
    if origin in (list, set, frozenset):
        return isinstance(value, origin) and all(_check_type(one, args[0]) for one in value)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else ()
        return isinstance(value, dict) and all(_check_type(k, args[0]) and _check_type(v, args[1]) for k, v in pairs)
    if origin is not None:
        return not isinstance(origin, type) or isinstance(value, origin)
    if expected is None:
        return value is None
    return isinstance(expected, type) and isinstance(value, expected)
