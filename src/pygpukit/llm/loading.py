"""From files to a model on the device: what there is, does it fit, and the weights a piece at a time."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.core.device import current_device
from pygpukit.core.transfer import Transfer, copy_to_device
from pygpukit.dtypes import DataType, bfloat16, float32, to_numpy_dtype
from pygpukit.dtypes import dtype as _dtype
from pygpukit.errors import ModelLoadError
from pygpukit.jit.progress import progress_bar
from pygpukit.llm.architecture import GGUF_NAMES, ModelSpec, Wanted, find_spec, wanted
from pygpukit.llm.blocks import decode
from pygpukit.llm.config import Settings, TransformerConfig
from pygpukit.llm.decoder import MLP, Attention, CausalTransformerModel, TransformerBlock
from pygpukit.llm.gguf import GGUFFile
from pygpukit.llm.layers import Linear, Norm
from pygpukit.llm.mapped import MappedFile, file_error
from pygpukit.llm.quantized import Part, Scheme, Weight, joined, read_scheme
from pygpukit.llm.quantizing import check_quantization, quantized
from pygpukit.llm.safetensors import SafeTensorsFile, ShardedSafeTensorsFile
from pygpukit.llm.streaming import StreamingStrategy
from pygpukit.quant.functions import concatenate
from pygpukit.quant.tensor import QuantTensor

__all__ = [
    "Checkpoint",
    "load_gpt2_from_safetensors",
    "load_llama_from_safetensors",
    "load_model",
    "load_model_from_safetensors",
    "load_qwen3_from_safetensors",
    "open_checkpoint",
    "read_json",
]

# Of NumPy.
Array = Any

# Elements that are decoded at once: what is needed of host memory beside the mapped file.
_PIECE = 1 << 22
# Copies of tensors at a time.
_UNDER_WAY = 8
_SHOWN = 20
# Formats that products read in their blocks.
_PRODUCTS = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"))


def read_json(path: Path, limit: int = 64 << 20) -> dict[str, Any]:
    """Return the object in a JSON file of a model.

    Raises
    ------
    ModelFileError
        If it is no JSON object, or longer than `limit` bytes.
    """
    file = MappedFile(path)
    if file.size > limit:
        raise file.fail(f"the file has {file.size} bytes; {limit} are allowed")
    try:
        found = json.loads(file.read(0, file.size).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise file.fail(f"this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise file.fail("this is not a JSON object")
    return found


class _Stored(NamedTuple):
    """A tensor of a file, turned and reordered as the model wants it: elements of rows, and bytes of all blocks.

    ``weight`` is a matrix that a SafeTensors file has in codes; ``whole`` is the tensor where the file has it as it is.
    """

    shape: tuple[int, ...]
    rows: Callable[[int, int], Array]
    blocks: Callable[[], Array] | None = None
    weight: Weight | None = None
    whole: Array | None = None


class Checkpoint:
    """The files of a model, opened: its architecture, its configuration, its tensors by role.

    Attributes
    ----------
    path : str
    spec : ModelSpec
    config : TransformerConfig
    folder : Path, optional
        Where the other files of the model lie.
    gguf : GGUFFile, optional
    scheme : Scheme, optional
        How quantised layers are stored in SafeTensors files.
    """

    def __init__(
        self,
        path: str,
        spec: ModelSpec,
        config: TransformerConfig,
        files: Any,
        folder: Path | None,
        scheme: Scheme | None = None,
    ) -> None:
        self.path, self.spec, self.config, self.files, self.folder = path, spec, config, files, folder
        self.scheme = scheme
        self.gguf: GGUFFile | None = files if isinstance(files, GGUFFile) else None
        self._names = GGUF_NAMES if self.gguf is not None else spec.names
        self.prefix = "" if self.gguf is not None else _prefix(spec, files)

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def name(self, want: Wanted) -> str:
        """Return the name of a tensor in the file."""
        return self.prefix + want.name(self._names)

    def has(self, want: Wanted) -> bool:
        """Whether the file has a tensor."""
        return self.name(want) in self.files or self.is_quantized(want)

    def is_quantized(self, want: Wanted) -> bool:
        """Whether a tensor is one of those that a SafeTensors file should have in codes."""
        if self.scheme is None or want.suffix != "weight" or want.role.endswith(("norm", "embed", "positions")):
            return False
        module = self._module(want)
        if self.scheme.is_plain(module):
            return False
        # Formats differ in whether they mean the head too.
        return want.layer >= 0 or any(f"{module}.{end}" in self.files for end in self.scheme.sign)

    def names(self, want: Wanted) -> list[str]:
        """Return the names of all tensors that are read for one."""
        if not self.is_quantized(want):
            return [self.name(want)]
        return [name for name, part in self._parts(want) if part.needed or name in self.files]

    def _module(self, want: Wanted) -> str:
        return self.name(want).removesuffix(f".{want.suffix}")

    def _parts(self, want: Wanted) -> list[tuple[str, Part]]:
        assert self.scheme is not None
        module = self._module(want)
        ends = [end for end in self.scheme.sign if f"{module}.{end}" in self.files]
        rows, columns = want.shape
        return [(f"{module}.{part.name}", part) for part in self.scheme.parts(rows, columns, ends)]

    def stored(self, want: Wanted) -> _Stored:
        """Return a tensor by its role."""
        if self.is_quantized(want):
            parts = [(name, part) for name, part in self._parts(want) if name in self.files]
            views = {part.name: self.files.tensor_view(name) for name, part in parts}
            assert self.scheme is not None
            n, k = want.shape
            weight = Weight(self.scheme, f"{self.path}: {self._module(want)}", views, (n, k))
            return _Stored(want.shape, weight.rows, weight=weight)
        name, files = self.name(want), self.files
        shape = tuple(files.tensor_info(name).shape)
        linear = want.is_linear
        if self.gguf is None:
            whole = files.tensor_view(name)
            if self.spec.transposed and linear:
                whole = whole.T
            return _Stored(whole.shape, lambda start, stop: whole[start:stop], whole=whole)
        info, width = self.gguf.tensor_info(name), shape[-1] if shape else 1
        per_row = width // info.kind.elements * info.kind.bytes
        data = self.gguf.tensor_view(name)
        if len(shape) == 1:
            return _Stored(shape, lambda start, stop: decode(info.kind, data)[start:stop])
        table = data.reshape(-1, per_row)
        order = self._order(want, shape[0]) if linear and self.spec.permuted else None

        def rows(start: int, stop: int) -> Array:
            chosen = table[start:stop] if order is None else table[order[start:stop]]
            return decode(info.kind, chosen.reshape(-1)).reshape(-1, width)

        return _Stored(shape, rows, lambda: table if order is None else table[order])

    def _order(self, want: Wanted, rows: int) -> Array | None:
        """Rows of queries and keys lie in pairs that turn together; here the halves of a head do."""
        heads = {"q": self.config.num_heads, "k": self.config.num_kv_heads}.get(want.role)
        if heads is None or rows % (2 * heads):
            return None
        return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)

    def kv_scales(self) -> Array | None:
        """Return what float8 keys and values are to be divided by, [layers, 1, 2, 1, heads]; None for nothing.

        Raises
        ------
        ModelLoadError
            If a scale is no positive number.
        """
        if self.scheme is None:
            return None
        heads, found = self.config.num_kv_heads, False
        scales = np.ones((self.config.num_layers, 1, 2, 1, heads), np.float32)
        role = "qkv" if self.spec.fused_qkv else "k"
        for layer in range(self.config.num_layers):
            attention = self._module(Wanted(role, layer, "weight", ())).rpartition(".")[0]
            for part, letter in enumerate("kv"):
                ends = (f"{letter}_scale", f"{letter}_proj.{letter}_scale", f"{letter}_proj.output_scale")
                name = next((n for end in ends if (n := f"{attention}.{end}") in self.files), None)
                if name is None:
                    continue
                values = self.files.tensor_as_f32(name).reshape(-1)
                if values.size not in (1, heads) or not (np.isfinite(values) & (values > 0)).all():
                    raise ModelLoadError(
                        f"{self.path}: {name} holds {values.size} numbers, {values[:4].tolist()}, and must be one "
                        f"positive number or one per head, {heads}"
                    )
                scales[layer, 0, part, 0], found = values, True
        return scales if found else None

    def present(self) -> list[Wanted]:
        """Return the tensors of the architecture that the files have."""
        return [want for want in wanted(self.config, self.spec) if self.has(want)]

    def check(self) -> None:
        """Compare the tensors that are there with those of the architecture.

        Raises
        ------
        ModelLoadError
            With all that is missing, too many, or of another shape.
        """
        problems, used = [], set()
        for want in wanted(self.config, self.spec):
            if want.role == "head" and not self.has(want) and self.config.tied is not False:
                continue
            used.update(self.names(want))
            problems += self._misfits(want)
        extra = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
        for name in self.files.tensor_names:
            bare = name.removeprefix(self.prefix)
            if name not in used and bare not in extra and not bare.endswith(self.spec.ignored):
                if self.prefix and not name.startswith(self.prefix):
                    # The other parts of a model for more than text.
                    continue
                if self.scheme is not None and self.scheme.is_unused(name, partial(self.files.tensor_view, name)):
                    continue
                problems.append(f"unexpected: {name}, of shape {list(self.files.tensor_info(name).shape)}")
        if problems:
            shown = problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])
            raise ModelLoadError(
                f"{self.path}: {len(problems)} tensors do not fit the architecture {self.spec.name}"
                + (f", quantised as {self.scheme.method}" if self.scheme is not None else "")
                + ":\n  "
                + "\n  ".join(shown)
            )

    def _misfits(self, want: Wanted) -> list[str]:
        """What is wrong with the tensors that are read for one."""
        if not self.is_quantized(want):
            name = self.name(want)
            if name not in self.files:
                return [f"missing: {name}, of shape {list(want.shape)}"]
            found = self.stored(want).shape
            if found != want.shape:
                return [f"mis-shaped: {name} is {list(found)}, and must be {list(want.shape)}"]
            return []
        problems = []
        for name, part in self._parts(want):
            shapes = " or ".join(str(list(shape)) for shape in part.shapes)
            if name not in self.files:
                problems += [f"missing: {name}, {part.types[0]} of shape {shapes}"] if part.needed else []
                continue
            info = self.files.tensor_info(name)
            if tuple(info.shape) not in part.shapes:
                problems.append(f"mis-shaped: {name} is {list(info.shape)}, and must be {shapes}")
            elif info.dtype not in part.types:
                problems.append(f"of another type: {name} is {info.dtype}, and must be {' or '.join(part.types)}")
        return problems


def _prefix(spec: ModelSpec, files: Any) -> str:
    first = spec.names["embed"] + ".weight"
    return next((prefix for prefix in spec.prefixes if prefix + first in files), "")


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model's folder, ``.safetensors``, ``.index.json`` or ``.gguf``, without reading weights.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or none of a model in the folder.
    ModelFileError
        If a file is damaged.
    ModelLoadError
        If the architecture is unknown or its settings cannot be.
    """
    place = Path(path)
    if place.is_dir():
        place = _weights_in(place)
    elif not place.exists():
        raise FileNotFoundError(f"{place} does not exist; 'smollm2' names the model of `pygpukit model fetch smollm2`")
    if place.suffix == ".gguf":
        return _open_gguf(place)
    sharded = place.suffix == ".json"
    if not sharded and place.suffix != ".safetensors":
        raise file_error(str(place), "a model is a folder, or a file .safetensors, .index.json or .gguf")
    settings = place.parent / "config.json"
    if not settings.exists():
        raise FileNotFoundError(f"{settings} is not there: it says how the tensors in {place.name} make a model")
    values = read_json(settings)
    kind = values.get("model_type")
    if isinstance(values.get("text_config"), dict):
        # A model for more than text: its decoder has settings of its own.
        values = {**values, **values["text_config"]}
    spec = find_spec(str(values.get("model_type", kind)))
    config = spec.read_config(Settings(values, source=str(settings)))
    scheme = read_scheme(values, str(settings))
    if scheme is not None and spec.transposed:
        raise ModelLoadError(f"{settings}: a quantised {spec.name} is not read: its matrices are [in, out]")
    files = ShardedSafeTensorsFile(place) if sharded else SafeTensorsFile(place)
    return Checkpoint(str(path), spec, config, files, place.parent, scheme)


def _weights_in(folder: Path) -> Path:
    for name in ("model.safetensors.index.json", "model.safetensors"):
        if (folder / name).exists():
            return folder / name
    for pattern in ("*.safetensors", "*-00001-of-*.gguf", "*.gguf"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(p.name for p in found[:5])
            raise FileNotFoundError(f"{folder} has {len(found)} files of weights ({names}): name the one to load")
    raise FileNotFoundError(f"{folder} has no weights: neither .safetensors nor .gguf")


def _open_gguf(place: Path) -> Checkpoint:
    file = GGUFFile(place)
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise file_error(str(place), "general.architecture is missing: the file does not say what it is")
    spec = find_spec(name, gguf=True)
    if "token_embd.weight" not in file or len(file.tensor_info("token_embd.weight").shape) != 2:
        raise ModelLoadError(f"{place}: token_embd.weight is missing, or no matrix")
    values = {key: _plain(value) for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    tensors = {"divisors": "rope_freqs", "factors_short": "rope_factors_short", "factors_long": "rope_factors_long"}
    for key, tensor in tensors.items():
        if f"{tensor}.weight" in file:
            values[f"{name}.rope.{key}"] = file.tensor_as_f32(f"{tensor}.weight").reshape(-1).tolist()
    settings = Settings(values, f"{name}.", str(place))
    return Checkpoint(
        str(place), spec, spec.read_gguf(settings, file.tensor_info("token_embd.weight").shape[0]), file, None
    )


def _plain(value: Any) -> Any:
    """A list where the value is an array; the one number where all are the same, as per layer."""
    if not isinstance(value, np.ndarray):
        return value
    listed = value.tolist()
    return listed[0] if listed and len(set(listed)) == 1 else listed


def chosen_dtype(requested: str, config: TransformerConfig, quantised: bool) -> DataType:
    """Return the element type of weights: on the CPU device float32 unless asked for, else that of the files."""
    if requested != "auto":
        kind = _dtype(requested)
        if kind.kind != "f" or kind.itemsize not in (2, 4):
            raise ValueError(f"dtype is {requested!r}, and must be auto, float32, bfloat16 or float16")
        return kind
    if current_device().kind == "cpu":
        return float32
    plain = not quantised and config.dtype in ("float32", "bfloat16", "float16")
    return _dtype(config.dtype) if plain and config.dtype is not None else bfloat16


def weight_dtype(checkpoint: Checkpoint, requested: str, quantization: str | None = None) -> DataType:
    """Return the element type that `load_model` gives to weights that are not codes."""
    coded = checkpoint.scheme is not None or quantization is not None
    wide = coded and checkpoint.config.dtype == "float32"
    return chosen_dtype(requested, checkpoint.config, checkpoint.gguf is not None or wide)


def load_model(
    checkpoint: Checkpoint,
    dtype: str = "auto",
    quiet: bool = False,
    streaming: StreamingStrategy = StreamingStrategy.EAGER,
    quantization: str | None = None,
) -> CausalTransformerModel:
    """Bring the weights to the current device, a piece at a time; they are read-only there.

    Parameters
    ----------
    checkpoint : Checkpoint
    dtype : str
        ``"auto"`` is float32 on the CPU device, else what is stored; beside quantised weights bfloat16. With a type of
        16 bits on a device with kernels quantised matrices stay in their codes.
    quiet : bool
        Show no progress.
    streaming : StreamingStrategy
        When layers are loaded; where that is later, the files must stay open.
    quantization : str, optional
        ``"fp8"``, ``"int8"`` or ``"int4"``: what the matrices of layers become, on the host, one role at a time. On the
        CPU device they are decoded again.

    Raises
    ------
    ModelLoadError
        With all tensors that are missing, too many, or of another shape.
    """
    check_quantization(quantization)
    checkpoint.check()
    config, spec = checkpoint.config, checkpoint.spec
    kind = weight_dtype(checkpoint, dtype, quantization)
    by_role = {(w.role, w.layer, w.suffix): w for w in wanted(config, spec)}
    total = checkpoint.files.file_size
    done, later = 0, False

    title = f"loading {Path(checkpoint.path).name}"
    with progress_bar(title, total, delay=3600.0 if quiet else 1.0) as show, _Uploads() as uploads:

        def take(roles: Sequence[str], layer: int = -1, suffix: str = "weight", to: DataType = kind) -> GPUArray | None:
            """Tensors of these roles under each other, None where there are none."""
            nonlocal done
            wants = [by_role[role, layer, suffix] for role in roles if (role, layer, suffix) in by_role]
            if not wants:
                return None
            array = uploads.upload(checkpoint, wants, to)
            if later:
                uploads.finish()
            done += sum(checkpoint.files.tensor_info(name).nbytes for want in wants for name in checkpoint.names(want))
            if not later:
                show(done)
            return array

        def linear(roles: Sequence[str], layer: int) -> Linear:
            wants = [by_role[role, layer, "weight"] for role in roles]
            if quantization is not None:
                weight: Any = _quantized(checkpoint, wants, kind, quantization)
            else:
                weight = _kept(checkpoint, wants, kind) or take(roles, layer)
            return Linear(weight, take(roles, layer, "bias"))

        def norm(role: str, layer: int = -1) -> Norm:
            # Few numbers, which every token is multiplied by: they keep their precision.
            weight = take((role,), layer, to=float32)
            assert weight is not None
            return Norm(weight, take((role,), layer, "bias", float32), config.norm_type, config.norm_eps)

        embed, positions = take(("embed",)), take(("positions",))
        assert embed is not None

        def block(i: int) -> TransformerBlock:
            heads = (norm("q_norm", i), norm("k_norm", i)) if config.qk_norm else (None, None)
            roles: tuple[str, ...] = ("qkv",) if spec.fused_qkv else ("q", "k", "v")
            attn = Attention(linear(roles, i), linear(("o",), i), config, i, *heads)
            roles = ("up",) if not config.gated else ("gate_up",) if spec.fused_gate_up else ("gate", "up")
            mlp = MLP(linear(roles, i), linear(("down",), i), config.activation, config.gated)
            after = (norm("attn_post_norm", i), norm("mlp_post_norm", i)) if config.post_norms else (None, None)
            return TransformerBlock(norm("attn_norm", i), attn, norm("mlp_norm", i), mlp, *after)

        if streaming is StreamingStrategy.EAGER:
            blocks = [block(i) for i in range(config.num_layers)]
        else:
            from pygpukit.llm.streamed_blocks import streamed

            blocks = streamed(block, config, kind, streaming)
        head = None
        if not _is_tied(checkpoint):
            head = _kept(checkpoint, [by_role["head", -1, "weight"]], kind) or take(("head",))
        last = norm("final_norm")
        uploads.finish()
        later = True
        model = CausalTransformerModel(config, embed, blocks, last, head, positions, spec)
        model.kv_scales = checkpoint.kv_scales()
        return model


def load_model_from_safetensors(
    model_path: str | os.PathLike[str],
    dtype: str = "float32",
    spec: ModelSpec | None = None,
    repack_weights: bool = True,
    *,
    streaming: StreamingStrategy = StreamingStrategy.EAGER,
) -> CausalTransformerModel:
    """Return the model in a folder, a file or an index.

    Parameters
    ----------
    model_path : str or path-like
    dtype : str
        Of the weights on the device.
    spec : ModelSpec, optional
        Checked against the one that config.json names, which counts.
    repack_weights : bool
        Changes nothing: matrices are stored as products read them.
    streaming : StreamingStrategy
        When layers are loaded.

    Raises
    ------
    ModelLoadError
        If it is of another architecture than `spec`, or its tensors do not fit.
    """
    checkpoint = open_checkpoint(model_path)
    try:
        if spec is not None and spec.name != checkpoint.spec.name:
            raise ModelLoadError(f"{model_path} is of the architecture {checkpoint.spec.name}, not {spec.name}")
        model = load_model(checkpoint, dtype, streaming=streaming)
    except BaseException:
        checkpoint.close()
        raise
    if streaming is StreamingStrategy.EAGER:
        checkpoint.close()
    return model


def load_gpt2_from_safetensors(model_path: str | os.PathLike[str], dtype: str = "float32") -> CausalTransformerModel:
    """Return a GPT-2, as `load_model_from_safetensors` does."""
    return load_model_from_safetensors(model_path, dtype, find_spec("gpt2"))


def load_llama_from_safetensors(model_path: str | os.PathLike[str], dtype: str = "float32") -> CausalTransformerModel:
    """Return a Llama, as `load_model_from_safetensors` does."""
    return load_model_from_safetensors(model_path, dtype, find_spec("llama"))


def load_qwen3_from_safetensors(model_path: str | os.PathLike[str], dtype: str = "float32") -> CausalTransformerModel:
    """Return a Qwen 3, as `load_model_from_safetensors` does."""
    return load_model_from_safetensors(model_path, dtype, find_spec("qwen3"))


def _quantized(
    checkpoint: Checkpoint, wants: Sequence[Wanted], to: DataType, quantization: str
) -> GPUArray | QuantTensor:
    """Matrices under each other in the codes of a format; on the CPU device the numbers that those mean."""
    names = [f"{checkpoint.path}: {checkpoint.name(want)}" for want in wants]
    read = (np.asarray(checkpoint.stored(want).rows(0, want.shape[0])) for want in wants)
    made = concatenate([quantized(name, matrix, quantization) for name, matrix in zip(names, read, strict=True)])
    if current_device().kind != "cpu":
        return made
    array = made.dequantize(to)
    array.setflags(write=False)
    return array


def _kept(checkpoint: Checkpoint, wants: Sequence[Wanted], to: DataType) -> QuantTensor | None:
    """Matrices under each other in the codes they are stored in, where products can read those.

    On the CPU device products are by NumPy, which needs the decoded numbers; where matrices that are to be one are
    coded differently they are decoded too.
    """
    if to.itemsize != 2 or current_device().kind == "cpu":
        return None
    if checkpoint.gguf is None:
        weights = [checkpoint.stored(want).weight for want in wants]
        coded = [weight for weight in weights if weight is not None]
        return joined(coded) if len(coded) == len(wants) else None
    if wants[0].role == "head":
        return None
    kinds = {checkpoint.gguf.tensor_info(checkpoint.name(want)).dtype for want in wants}
    if len(kinds) > 1 or not kinds <= _PRODUCTS:
        return None
    found = [checkpoint.stored(want).blocks for want in wants]
    data = np.concatenate([blocks() for blocks in found if blocks is not None])
    shape = (data.shape[0], wants[0].shape[1])
    return QuantTensor.from_checkpoint(kinds.pop().lower(), {"data": data}, shape=shape)


def _is_tied(checkpoint: Checkpoint) -> bool:
    """Whether the head is the embedding: as the settings say, unless the file has both and they differ."""
    head, embed = (Wanted(role, -1, "weight", ()) for role in ("head", "embed"))
    if not checkpoint.has(head):
        return True
    if not checkpoint.config.tied or checkpoint.is_quantized(head):
        return False
    names = checkpoint.name(head), checkpoint.name(embed)
    same = np.array_equal(_bytes_view(checkpoint.files, names[0]), _bytes_view(checkpoint.files, names[1]))
    if not same:
        warnings.warn(
            f"{checkpoint.path}: the settings say that the head is the embedding, but the file has both and they "
            "differ; the head is used",
            stacklevel=4,
        )
    return same


def _bytes_view(files: Any, name: str) -> Array:
    info = files.tensor_info(name)
    view: Array = info.file.array(info.offset, info.nbytes)
    return view


class _Uploads:
    """Copies of tensors on their way to the device; what they fill is read-only when they are done."""

    def __init__(self) -> None:
        self._transfers: deque[Transfer] = deque()
        self._filled: list[GPUArray] = []

    def __enter__(self) -> _Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def upload(self, checkpoint: Checkpoint, wants: Sequence[Wanted], to: DataType) -> GPUArray:
        """Return one array on the device of tensors under each other."""
        target = to_numpy_dtype(to)
        shape = (sum(want.shape[0] for want in wants), *wants[0].shape[1:])
        array = empty(shape, to)
        self._filled.append(array)
        flat, at = array.reshape(-1), 0
        width = shape[1] if len(shape) > 1 else 1
        step = max(1, _PIECE // width)
        for want in wants:
            stored, count = checkpoint.stored(want), math.prod(want.shape)
            is_norm = want.role.endswith("norm") and want.suffix == "weight"
            offset = checkpoint.config.norm_offset if is_norm else 0.0
            whole = stored.whole
            if whole is not None and whole.dtype == target and whole.flags.c_contiguous and not offset:
                # Straight from the file's pages.
                self._transfers.append(copy_to_device(whole.reshape(-1), flat[at : at + count]))
                at += count
                while len(self._transfers) > _UNDER_WAY:
                    self._transfers.popleft().wait()
                continue
            for start in range(0, want.shape[0], step):
                piece = stored.rows(start, min(want.shape[0], start + step))
                if offset:
                    piece = piece.astype(np.float32) + np.float32(offset)
                piece = np.ascontiguousarray(piece, target)
                _native.write_buffer(flat[at : at + piece.size], piece.reshape(-1).view(np.uint8))
                at += piece.size
        return array

    def finish(self) -> None:
        """Wait for all of them."""
        while self._transfers:
            self._transfers.popleft().wait()
        for array in self._filled:
            array.setflags(write=False)
        self._filled.clear()
