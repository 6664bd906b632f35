"""`gp.module`: several kernels of one source that share its variables, and the variables as arrays."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import dtype as as_dtype
from pygpukit.errors import KernelCompileError
from pygpukit.jit.kernel import check_arguments

if TYPE_CHECKING:
    from pygpukit.dtypes import DTypeLike
    from pygpukit.jit.signature import Signature
    from pygpukit.jit.variables import Variable

__all__ = ["Module", "module"]


def module(
    src: str,
    kernels: Sequence[str] = (),
    options: Sequence[str] = (),
    defines: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    check: bool | Literal["fuzz"] = False,
    seed: int | None = None,
) -> Module:
    """Compile a CUDA C++ source whose kernels share ``__device__`` and ``__constant__`` variables.

    Each call loads the source anew: two modules of one source have variables of their own. Use `jit` where kernels
    share nothing.

    Parameters
    ----------
    src : str
        CUDA C++ text.
    kernels : sequence of str, optional
        Templates to compile, with their arguments: ``["add<float>"]``. Kernels that are no templates are always there.
    options, defines, headers, check, seed
        As in `jit`.

    Returns
    -------
    Module
        ``module.name`` or ``module.kernel("name")`` is a kernel, ``module["name"]`` a variable.

    Raises
    ------
    KernelCompileError
        If the source does not compile or has no such kernel.
    NvrtcNotFoundError
        If it must be compiled and NVRTC is not there.

    Examples
    --------
    >>> import pygpukit as gp
    >>> source = '''
    ... __constant__ float weight[4];
    ... __device__ int calls;
    ... __global__ void scale(float* x) { x[threadIdx.x] *= weight[threadIdx.x]; if (threadIdx.x == 0) ++calls; }
    ... '''
    >>> if gp.is_nvrtc_available():
    ...     module = gp.module(source)
    ...     module["weight"] = [1, 2, 3, 4]
    ...     x = gp.ones(4)
    ...     module.scale(x, grid=1, block=4)
    ...     assert x.tolist() == [1, 2, 3, 4]
    ...     assert module["calls"].item() == 1
    """
    check_arguments(src, options, defines, headers, check, seed)
    if isinstance(kernels, str):
        raise TypeError(f"kernels must be a sequence of names, not one text: use kernels=[{kernels!r}]")
    from pygpukit.jit.build import module_from_source

    order = (seed or 0) if check == "fuzz" else None
    return module_from_source(
        _native.current_device(), src, kernels, options, defines, headers, check is not False, order
    )


class Module:
    """A loaded source: kernels that share its variables. Made by `pygpukit.module`.

    ``module.name`` and ``module.kernel("name")`` are kernels. ``module["name"]`` is a variable as an array over its
    memory, and ``module["name"] = values`` copies into it. Both are ordered with kernels by the current stream, as all
    work on arrays is.
    """

    def __init__(
        self,
        loaded: _native._Module,
        signatures: Mapping[str, tuple[Signature, str]],
        variables: Mapping[str, tuple[Variable, str]],
    ) -> None:
        self._loaded = loaded
        self._signatures = dict(signatures)
        self._variables = dict(variables)
        self._made: dict[str, _native.Kernel] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of its kernels."""
        return tuple(self._signatures)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of its variables."""
        return tuple(self._variables)

    @property
    def device(self) -> _native.Device:
        """Device it is loaded on."""
        return self._loaded.device

    def kernel(self, name: str) -> _native.Kernel:
        """A kernel by name; the namespace may be left out where one kernel alone has the name.

        Raises
        ------
        KernelCompileError
            If there is no such kernel; the text lists what there is.
        """
        full = self._find(name, self._signatures, "kernel", "compile a template with gp.module(src, kernels=[...])")
        made = self._made.get(full)
        if made is None:
            signature, entry = self._signatures[full]
            params = [(param.name, param.code) for param in signature.params]
            made = self._made.setdefault(full, self._loaded.kernel(entry, full, params))
        return made

    def variable(
        self, name: str, dtype: DTypeLike | None = None, shape: int | Sequence[int] | None = None
    ) -> _native.GPUArray:
        """A variable as an array over its memory.

        Parameters
        ----------
        name : str
            Its name; the namespace may be left out where one variable alone has the name.
        dtype : data type, optional
            Element type; by default that of the declaration, and ``uint8`` for structs.
        shape : int or sequence of int, optional
            By default that of the declaration where it is known, else one dimension.

        Raises
        ------
        KeyError
            If there is no such variable.
        ValueError
            If shape and type do not fill the variable exactly.
        """
        from pygpukit.jit.variables import shape_of

        try:
            full = self._find(name, self._variables, "variable", "only those outside of functions are known")
        except KernelCompileError as error:
            raise KeyError(str(error)) from None
        variable, symbol = self._variables[full]
        kind = as_dtype(dtype if dtype is not None else _dtype_name(variable.code))
        size = self._loaded.variable_bytes(symbol)
        if shape is None:
            if size % kind.itemsize:
                raise ValueError(
                    f"variable '{full}' has {size} bytes, which is no multiple of {kind.name}'s {kind.itemsize}"
                )
            count = size // kind.itemsize
            shape = shape_of(variable, count) if dtype is None and variable.code is not None else (count,)
        dims = [shape] if isinstance(shape, int) else list(shape)
        return self._loaded.variable(symbol, dims, kind)

    def __getitem__(self, name: str) -> _native.GPUArray:
        return self.variable(name)

    def __setitem__(self, name: str, value: object) -> None:
        self.variable(name)[...] = value

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __iter__(self) -> object:
        return iter(self._variables)

    def __getattr__(self, name: str) -> _native.Kernel:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.kernel(name)
        except KernelCompileError as error:
            remark = f"; it is a variable: use module[{name!r}]" if name in self._variables else ""
            raise AttributeError(f"{error}{remark}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._signatures]

    def __repr__(self) -> str:
        return (
            f"<Module kernels: {', '.join(self.kernels) or 'none'}; variables: {', '.join(self.variables) or 'none'}>"
        )

    def _find(self, name: str, known: Mapping[str, object], what: str, remark: str) -> str:
        if name in known:
            return name
        found = [full for full in known if full.endswith(f"::{name}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise KernelCompileError(f"{what} '{name}' fits {', '.join(found)}; give the namespace too")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise KernelCompileError(
            f"the module has no {what} '{name}': it has {', '.join(known) or 'none'} ({remark}){hint}"
        )


def _dtype_name(code: str | None) -> str:
    """Name of the element type a tag stands for; bytes for what arrays do not hold."""
    names = {"b1": "bool", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", None: "uint8"}
    if code in names:
        return names[code]
    letters = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
    assert code is not None
    return letters[code[0]] + code[1:]
