"""Weights that are on the device only while a layer needs them: a loader with a budget, and when it loads what.

>>> import tempfile
>>> from pygpukit.llm.testing import tiny_model
>>> with tempfile.TemporaryDirectory() as folder:
...     loader = LazyModelLoader("1MiB")
...     _ = loader.load_file(tiny_model("llama", folder) / "model.safetensors")
...     with create_streaming_context(loader, "simple", num_layers=2) as context:
...         weights = [context.prepare(layer) for layer in range(2)]
>>> sorted(weights[1])[0], loader.pool_stats.active_blocks
('model.layers.1.input_layernorm.weight', 0)
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections import OrderedDict, deque
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.config import format_size, parse_size
from pygpukit.errors import OutOfMemoryError
from pygpukit.llm.gguf import GGUFFile
from pygpukit.llm.safetensors import load_safetensors

__all__ = [
    "AutoLRU",
    "LayerStreamingContext",
    "LazyModelLoader",
    "LoadingStrategy",
    "PoolStats",
    "SimpleStreaming",
    "SlidingWindow",
    "StreamingStrategy",
    "TensorState",
    "create_streaming_context",
]

_PREFIX = "model.layers.{}."


class StreamingStrategy(enum.Enum):
    """When ``QwenModel.from_safetensors`` brings layers to the device."""

    EAGER = "eager"
    """All of them before it returns."""
    PROGRESSIVE = "progressive"
    """Each when it is first used; it stays."""
    LAYER_BY_LAYER = "layer_by_layer"
    """Each when it is used; the one before it is dropped."""


class TensorState(enum.Enum):
    """Where a tensor of a `LazyModelLoader` is."""

    ON_DISK = "on_disk"
    LOADED = "loaded"
    EVICTED = "evicted"
    """On disk again, because the budget was full."""


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """What a `LazyModelLoader` has on the device, in bytes and tensors."""

    quota: int
    used: int
    active_blocks: int
    eviction_count: int

    @property
    def available(self) -> int:
        """What is left of the quota."""
        return self.quota - self.used

    @property
    def utilization(self) -> float:
        """Used part of the quota, in percent."""
        return 100.0 * self.used / self.quota


class LazyModelLoader:
    """Tensors of files, brought to the device when they are asked for, within a budget.

    Parameters
    ----------
    memory_budget : int or str
        Bytes that its tensors may take, such as ``"8GiB"``.
    enable_eviction : bool
        Drop the tensors that were not asked for longest when the budget is full, instead of an error. An array that is
        still in use keeps its memory.

    Raises
    ------
    OutOfMemoryError
        From `get_tensor` and `load_layer`, if a tensor does not fit into the budget.
    """

    def __init__(self, memory_budget: int | str, enable_eviction: bool = True) -> None:
        self.memory_budget = parse_size(memory_budget)
        if self.memory_budget < 1:
            raise ValueError(f"memory_budget is {memory_budget!r}, and must be a positive number of bytes")
        self.enable_eviction = enable_eviction
        self._files: list[Any] = []
        self._homes: dict[str, Any] = {}
        self._loaded: OrderedDict[str, GPUArray] = OrderedDict()
        self._evicted: set[str] = set()
        self._evictions = self._used = 0

    def load_file(self, path: str | os.PathLike[str]) -> int:
        """Open a ``.safetensors``, an ``.index.json`` or a ``.gguf``, and return how many tensors it has.

        Raises
        ------
        ModelFileError
            If the file is damaged.
        ValueError
            If a tensor of another file has the same name.
        """
        file = GGUFFile(path) if os.fspath(path).endswith(".gguf") else load_safetensors(path)
        twice = next((name for name in file.tensor_names if name in self._homes), None)
        if twice is not None:
            file.close()
            raise ValueError(f"{os.fspath(path)} has the tensor {twice!r}, which another file has")
        self._files.append(file)
        self._homes.update(dict.fromkeys(file.tensor_names, file))
        return len(file)

    @property
    def tensor_names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._homes)

    @property
    def num_tensors(self) -> int:
        """How many tensors there are."""
        return len(self._homes)

    @property
    def total_size(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(file.tensor_info(name).nbytes for name, file in self._homes.items())

    def tensor_info(self, name: str) -> Any:
        """Return shape, type and place of a tensor."""
        return self._file(name).tensor_info(name)

    def tensor_state(self, name: str) -> TensorState:
        """Return where a tensor is."""
        self._file(name)
        if name in self._loaded:
            return TensorState.LOADED
        return TensorState.EVICTED if name in self._evicted else TensorState.ON_DISK

    def get_tensor(self, name: str) -> GPUArray:
        """Return a tensor on the device, read-only: as it is stored, quantised ones of GGUF files in float32."""
        found = self._loaded.get(name)
        if found is not None:
            self._loaded.move_to_end(name)
            return found
        file = self._file(name)
        host = file.tensor_as_f32(name) if isinstance(file, GGUFFile) else file.tensor_view(name)
        self._make_room(name, host.nbytes)
        array = from_numpy(host)
        array.setflags(write=False)
        self._loaded[name] = array
        self._used += array.nbytes
        self._evicted.discard(name)
        return array

    def load_layer(self, prefix: str) -> dict[str, GPUArray]:
        """Return the tensors whose names begin so, on the device.

        Raises
        ------
        KeyError
            If there are none.
        """
        names = self._names(prefix)
        if not names:
            raise KeyError(f"no tensor's name begins with {prefix!r}")
        return {name: self.get_tensor(name) for name in names}

    def is_layer_loaded(self, prefix: str) -> bool:
        """Whether all tensors whose names begin so are on the device."""
        names = self._names(prefix)
        return bool(names) and all(name in self._loaded for name in names)

    def unload_layer(self, prefix: str) -> int:
        """Drop the tensors whose names begin so from the device, and return how many there were."""
        names = [name for name in self._loaded if name.startswith(prefix)]
        for name in names:
            self._drop(name)
        return len(names)

    def unload_model(self) -> int:
        """Drop all tensors from the device, and return how many there were."""
        return self.unload_layer("")

    @property
    def pool_stats(self) -> PoolStats:
        """What is on the device."""
        return PoolStats(self.memory_budget, self._used, len(self._loaded), self._evictions)

    def close(self) -> None:
        """Drop all tensors and close the files."""
        self.unload_model()
        for file in self._files:
            file.close()

    def __enter__(self) -> LazyModelLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        used, budget = format_size(self._used), format_size(self.memory_budget)
        return f"<LazyModelLoader: {len(self._loaded)} of {self.num_tensors} tensors loaded, {used} of {budget}>"

    def _file(self, name: str) -> Any:
        try:
            return self._homes[name]
        except KeyError:
            raise KeyError(f"no file has a tensor {name!r}") from None

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._homes if name.startswith(prefix)]

    def _drop(self, name: str) -> None:
        self._used -= self._loaded.pop(name).nbytes

    def _make_room(self, name: str, nbytes: int) -> None:
        while self._used + nbytes > self.memory_budget:
            if nbytes > self.memory_budget or not self.enable_eviction:
                raise OutOfMemoryError(
                    f"tensor {name!r} takes {format_size(nbytes)}, and {format_size(self.pool_stats.available)} of the "
                    f"budget of {format_size(self.memory_budget)} are left: give a larger memory_budget"
                    + ("" if self.enable_eviction else ", or enable_eviction=True")
                )
            oldest = next(iter(self._loaded))
            self._drop(oldest)
            self._evicted.add(oldest)
            self._evictions += 1


@dataclasses.dataclass
class LoadingStrategy:
    """When layers are loaded and dropped; subclasses change what they need.

    Attributes
    ----------
    prefix_template
        What the names of a layer's tensors begin with.
    """

    prefix_template: str = _PREFIX

    def on_start(self, loader: LazyModelLoader, num_layers: int) -> None:
        """Called when streaming begins."""

    def on_layer_start(self, loader: LazyModelLoader, layer_idx: int, num_layers: int) -> None:
        """Called before a layer is used: loads it."""
        loader.load_layer(self.layer_prefix(layer_idx))

    def on_layer_end(self, loader: LazyModelLoader, layer_idx: int, num_layers: int) -> None:
        """Called when another layer is used, or none any more."""

    def on_end(self, loader: LazyModelLoader, num_layers: int) -> None:
        """Called when streaming ends."""

    def layer_prefix(self, layer_idx: int) -> str:
        """Return what the names of a layer's tensors begin with."""
        return self.prefix_template.format(layer_idx)


@dataclasses.dataclass
class SimpleStreaming(LoadingStrategy):
    """One layer at a time."""

    def on_layer_end(self, loader: LazyModelLoader, layer_idx: int, num_layers: int) -> None:
        """Drop the layer."""
        loader.unload_layer(self.layer_prefix(layer_idx))


@dataclasses.dataclass
class SlidingWindow(LoadingStrategy):
    """At most `window_size` layers, of which `prefetch_ahead` are the next ones."""

    window_size: int = 4
    prefetch_ahead: int = 1

    def __post_init__(self) -> None:
        if self.window_size < 1:
            raise ValueError(f"window_size is {self.window_size}, and must be at least 1")
        if not 0 <= self.prefetch_ahead < self.window_size:
            raise ValueError(
                f"prefetch_ahead is {self.prefetch_ahead}, and must be from 0 to {self.window_size - 1}: the layer "
                "itself is in the window too"
            )
        self._resident: deque[int] = deque()

    def on_start(self, loader: LazyModelLoader, num_layers: int) -> None:
        """Forget the layers of another run."""
        self._resident.clear()

    def on_layer_start(self, loader: LazyModelLoader, layer_idx: int, num_layers: int) -> None:
        """Load the layer and the next ones; drop those that were loaded longest ago."""
        wanted = range(layer_idx, min(layer_idx + self.prefetch_ahead + 1, num_layers))
        new = [layer for layer in wanted if layer not in self._resident]
        for layer in [layer for layer in self._resident if layer not in wanted]:
            if len(self._resident) + len(new) <= self.window_size:
                break
            self._resident.remove(layer)
            loader.unload_layer(self.layer_prefix(layer))
        self._resident += new
        for layer in wanted:
            loader.load_layer(self.layer_prefix(layer))


@dataclasses.dataclass
class AutoLRU(LoadingStrategy):
    """As many layers as the loader's budget holds; it drops those that were not used longest."""

    unload_on_end: bool = False

    def on_end(self, loader: LazyModelLoader, num_layers: int) -> None:
        """Drop everything, if `unload_on_end`."""
        if self.unload_on_end:
            loader.unload_model()


class LayerStreamingContext:
    """A run through the layers of a model, whose weights come and go by a strategy.

    Parameters
    ----------
    loader : LazyModelLoader
    strategy : LoadingStrategy
    num_layers : int
    prefix_template : str
        Of the strategy, where it differs from the usual one.
    """

    def __init__(
        self, loader: LazyModelLoader, strategy: LoadingStrategy, num_layers: int, prefix_template: str = _PREFIX
    ) -> None:
        if prefix_template != _PREFIX:
            strategy.prefix_template = prefix_template
        self.loader, self.strategy, self.num_layers = loader, strategy, num_layers
        self.current_layer: int | None = None
        self._active = False

    def prepare(self, layer_idx: int) -> dict[str, GPUArray]:
        """Bring a layer to the device, and return its tensors by name.

        Raises
        ------
        ValueError
            If there is no such layer, or outside of a ``with`` block.
        """
        if not self._active:
            raise ValueError("a layer is prepared inside of a with block: with context: context.prepare(0)")
        if not 0 <= layer_idx < self.num_layers:
            raise ValueError(f"layer_idx is {layer_idx}, and there are {self.num_layers} layers")
        if self.current_layer is not None and self.current_layer != layer_idx:
            self.strategy.on_layer_end(self.loader, self.current_layer, self.num_layers)
        self.current_layer = layer_idx
        self.strategy.on_layer_start(self.loader, layer_idx, self.num_layers)
        return self.loader.load_layer(self.layer_prefix(layer_idx))

    def layer_prefix(self, layer_idx: int) -> str:
        """Return what the names of a layer's tensors begin with."""
        return self.strategy.layer_prefix(layer_idx)

    @property
    def memory_stats(self) -> dict[str, float]:
        """What the loader has on the device, in GiB and numbers."""
        stats, gib = self.loader.pool_stats, 1 << 30
        return {
            "quota_gb": stats.quota / gib,
            "used_gb": stats.used / gib,
            "available_gb": stats.available / gib,
            "utilization_pct": stats.utilization,
            "active_blocks": stats.active_blocks,
            "eviction_count": stats.eviction_count,
        }

    def __enter__(self) -> LayerStreamingContext:
        self._active = True
        self.strategy.on_start(self.loader, self.num_layers)
        return self

    def __exit__(self, *error: object) -> None:
        if self.current_layer is not None:
            self.strategy.on_layer_end(self.loader, self.current_layer, self.num_layers)
        self.strategy.on_end(self.loader, self.num_layers)
        self._active, self.current_layer = False, None


_STRATEGIES: dict[str, type[LoadingStrategy]] = {
    "simple": SimpleStreaming,
    "simple_streaming": SimpleStreaming,
    "sliding": SlidingWindow,
    "sliding_window": SlidingWindow,
    "auto": AutoLRU,
    "auto_lru": AutoLRU,
    "lru": AutoLRU,
}


def create_streaming_context(
    loader: LazyModelLoader,
    strategy: str | LoadingStrategy,
    num_layers: int,
    prefix_template: str = _PREFIX,
    **options: Any,
) -> LayerStreamingContext:
    """Return a run through the layers, by a strategy or its name: ``"simple"``, ``"sliding"`` or ``"auto"``.

    ``options`` are those of the strategy's class, such as ``window_size=4``.
    """
    if isinstance(strategy, str):
        found = _STRATEGIES.get(strategy.lower())
        if found is None:
            raise ValueError(f"strategy is {strategy!r}, and must be simple, sliding or auto")
        strategy = found(**options)
    elif options:
        raise ValueError(f"{', '.join(options)} are options of a strategy that is given by its name")
    return LayerStreamingContext(loader, strategy, num_layers, prefix_template)
