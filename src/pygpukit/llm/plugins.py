"""Architectures, processors and others of other packages: registered by a program, or found by their entry points.

A package announces what it has in its pyproject.toml, each under its kind and name; it is imported when that is used:

    [project.entry-points."pygpukit.llm"]
    "architecture.starcoder2" = "my_package.starcoder2:SPEC"
    "processor.no_repeat" = "my_package.processors:no_repeat"

A plugin that cannot be loaded is left out with a warning, and `report` says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

from pygpukit.config import read_settings

__all__ = ["GROUP", "KINDS", "Plugin", "find", "names", "register", "report"]

GROUP = "pygpukit.llm"


def _is_architecture(made: Any) -> bool:
    from pygpukit.llm.architecture import ModelSpec

    return isinstance(made, ModelSpec)


def _is_strategy(made: Any) -> bool:
    from pygpukit.llm.decode import DecodeStrategy
    from pygpukit.llm.drafters import Drafter

    return isinstance(made, type) and issubclass(made, DecodeStrategy | Drafter)


# What a plugin of each kind must be, and how to say it.
KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "architecture": (_is_architecture, "a ModelSpec"),
    "processor": (callable, "a function of token ids and scores that returns scores"),
    "quantization": (callable, "a function of a matrix that returns a QuantTensor"),
    "decode": (_is_strategy, "a subclass of DecodeStrategy or Drafter"),
    "template": (lambda made: isinstance(made, str), "the text of a chat template"),
}


class Plugin(NamedTuple):
    """What there is of a kind and name, where it is from, and why it cannot be used; None if it can."""

    kind: str
    name: str
    source: str
    error: str | None = None


_registered: dict[tuple[str, str], Any] = {}
_failed: dict[tuple[str, str], str] = {}


def register(kind: str, name: str, obj: Any) -> None:
    """Make something known by a name.

    Parameters
    ----------
    kind : str
        ``"architecture"``, a `ModelSpec` for the ``model_type`` of that name; ``"processor"``, for
        ``SamplingParams(processors=[name])``; ``"quantization"``, for ``LLM(quantization=name)``, a function that makes
        a `QuantTensor` of a float32 matrix of outputs by inputs; ``"decode"``, a subclass of `DecodeStrategy`, for
        `DecodeStrategy.named`, or of `Drafter`, for ``LLM(speculative=name)``; ``"template"``, the text of a chat
        template.
    name : str
    obj
        What is meant.

    Raises
    ------
    ValueError
        If the kind is unknown, the name is taken, or `obj` is nothing of that kind.

    Examples
    --------
    >>> register("template", "plain", "{% for m in messages %}{{ m.content }} {% endfor %}")
    >>> find("template", "plain")[:7]
    '{% for '
    """
    key = _key(kind, name)
    if key in _registered and _registered[key] is not obj:
        raise ValueError(f"the {kind} {name!r} is registered already, as {_registered[key]!r:.80}")
    _check(kind, name, obj)
    _registered[key] = obj


def find(kind: str, name: str) -> Any:
    """Return what is known by a name, None for nothing; its package is imported when it is first asked for."""
    key = _key(kind, name)
    if key in _registered or key in _failed:
        return _registered.get(key)
    entry = _entries().get(key)
    if entry is None or isinstance(entry, str):
        return None
    try:
        found = entry.load()
        _check(kind, name, found)
    except Exception as error:  # whatever a package can do wrong
        _failed[key] = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"the {kind} {name!r} of {_source(entry)} is left out: {_failed[key]}", RuntimeWarning, stacklevel=3
        )
        return None
    _registered[key] = found
    return found


def names(kind: str) -> list[str]:
    """Return the names of a kind, without importing anything."""
    known = {key for key, entry in _entries().items() if not isinstance(entry, str)} | set(_registered)
    return sorted(name for known_kind, name in known if known_kind == kind and (kind, name) not in _failed)


def report() -> list[Plugin]:
    """Return all plugins, after trying to load them."""
    rows = []
    for (kind, name), entry in sorted({**dict.fromkeys(_registered), **_entries()}.items()):
        if isinstance(entry, str):
            rows.append(Plugin(kind, name, entry, "its name must be a kind and a name: " + ", ".join(KINDS)))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            find(kind, name)
        source = "this program" if entry is None else _source(entry)
        rows.append(Plugin(kind, name, source, _failed.get((kind, name))))
    return rows


def _key(kind: str, name: str) -> tuple[str, str]:
    if kind not in KINDS:
        raise ValueError(f"the kind is {kind!r}, and must be one of {', '.join(KINDS)}")
    if not name:
        raise ValueError("the name is empty")
    return kind, name


def _check(kind: str, name: str, obj: Any) -> None:
    fits, what = KINDS[kind]
    if not fits(obj):
        raise ValueError(f"the {kind} {name!r} is {obj!r:.80}, and must be {what}")
    if kind == "architecture" and name not in (obj.name, *obj.model_types):
        raise ValueError(f"the architecture {name!r} has a ModelSpec of the name {obj.name!r}")


@cache
def _entries() -> dict[tuple[str, str], metadata.EntryPoint | str]:
    """Entry points by kind and name; the source of those whose name is none."""
    if not read_settings().plugins:
        return {}
    found: dict[tuple[str, str], metadata.EntryPoint | str] = {}
    for entry in metadata.entry_points(group=GROUP):
        kind, _, name = entry.name.partition(".")
        # Of two packages with one name the first on the path counts, as for modules.
        found.setdefault((kind, name), entry if kind in KINDS and name else _source(entry))
    return found


def _source(entry: metadata.EntryPoint) -> str:
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _forget() -> None:
    """Look for entry points again, for tests; what was registered or failed is forgotten."""
    _entries.cache_clear()
    _registered.clear()
    _failed.clear()
