"""The registry: every operator that is more than a row of the elementwise table, with the variants it runs by.

A family is a package with a module ``rows``, which registers its operators when it is imported. `load` finds them all,
so a new family is found by the public names, by bundles, tests, benchmark and `explain` without a line elsewhere.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pygpukit import _pygpukit_rust as _native

if TYPE_CHECKING:
    from pygpukit.ops.launch import Compose, Host, Launch, Unit
    from pygpukit.ops.problem import Problem, Result

Determinism = Literal["not_guaranteed", "run_to_run", "batch_invariant"]
Function = TypeVar("Function", bound=Callable[..., Any])
Kind = Literal["array", "optional", "operand", "number", "choice"]

REQUIRED: Any = object()
"""Default of a parameter that has none."""

MEANINGS: Mapping[Determinism, str] = {
    "not_guaranteed": "the bits may differ from run to run",
    "run_to_run": "the bits are the same in every run with the same shapes",
    "batch_invariant": "the bits are the same in every run and whatever the shape around an element",
}


STRENGTH: tuple[Determinism, ...] = ("batch_invariant", "run_to_run", "not_guaranteed")
"""Levels of determinism, the strongest first."""


def level(name: str) -> Determinism:
    """Return a level of determinism by its name.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    for own in STRENGTH:
        if own == name:
            return own
    raise ValueError(f"there is no level of determinism '{name}'; use {', '.join(map(repr, STRENGTH))}")


def promises(own: Determinism, asked: Determinism) -> bool:
    """Is a level at least as strong as another?"""
    return STRENGTH.index(own) <= STRENGTH.index(asked)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operator.

    Attributes
    ----------
    name
        As callers write it.
    kind
        ``"array"``; ``"optional"``, an array or None; ``"operand"``, an array or a number; ``"number"``, a number that
        kernels get at each call; ``"choice"``, any value of Python's plain types: another value is another plan.
    default
        `REQUIRED` for none.
    keyword_only
        May be given by name only; so may all that follow.
    doc
        One line for the docstring.
    number_type
        Element type, by name, of the array that a number becomes which stands in place of an array; by the rules of
        `pygpukit.asarray` where empty.
    """

    name: str
    kind: Kind = "array"
    default: Any = REQUIRED
    keyword_only: bool = False
    doc: str = ""
    number_type: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """One way to run an operator.

    Attributes
    ----------
    name
        Shown by `explain`.
    determinism
        What the bits of a result may depend on. A variant runs where this is at least as strong as what is asked, or
        nothing stronger accepts: one that is fast and weak goes before one that is slower and strong.
    accepts
        None, or the reason why it cannot run a problem.
    launch
        Its launches on a device that runs kernels.
    host
        In place of `launch`: the function over NumPy views that the CPU device runs.
    compose
        In place of `launch`: a function of results and arguments that calls other operators.
    architectures
        Lowest compute capability, such as ``"80"``, or one architecture, such as ``"90a"``.
    units
        Sources for a bundle, for element types by name.
    """

    name: str
    determinism: Determinism
    accepts: Callable[[Problem], str | None]
    launch: Callable[[Problem], Launch] | None = None
    host: Callable[[Problem], Host] | None = None
    compose: Callable[[Problem], Compose] | None = None
    architectures: str = "80"
    units: Callable[[Sequence[str]], Iterable[Unit]] | None = None

    def refuses(self, problem: Problem) -> str | None:
        """Return why this variant cannot run the problem; None if it can."""
        if self.host is not None and problem.kind != "cpu":
            return "runs on the CPU device"
        if self.launch is not None:
            if problem.kind == "cpu":
                return "needs a GPU or the emulator"
            exact = not self.architectures.isdigit()
            if exact and problem.arch != self.architectures:
                return f"exists for sm_{self.architectures}, not for sm_{problem.arch}"
            if not exact and problem.compute_capability < int(self.architectures):
                return f"needs sm_{self.architectures} or newer, this is sm_{problem.arch}"
        return self.accepts(problem)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Arguments for tests of an operator.

    Attributes
    ----------
    arrays
        Element type and shape by parameter.
    options
        Values of the other parameters.
    rows
        By parameter, the axis along which an array has the rows of a batch; results have them along the axis of the
        first. Tests give the operator other numbers of rows, in other orders, and ask for the same bits of each.
    """

    arrays: Mapping[str, tuple[str, tuple[int, ...]]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """An operator: what it means, what it gives, and how it can run.

    Attributes
    ----------
    name
        Public name, also in the package's namespace.
    parameters
        In order; ``out`` and ``stream`` come by themselves.
    infer
        Shapes and element types of the results of a problem, or the error.
    reference
        The same over NumPy arrays, called as the operator is; returns an array or a tuple.
    variants
        In order: the first that accepts a problem runs.
    doc
        Docstring without its parameters' section.
    tolerance
        Relative distance from the reference that tests allow, by element type of the first result; 0 where not named.
    cases
        Problems that tests run on every device.
    timed
        Large problems that the benchmark times; an elementwise operator without them gets one.
    bytes, flops
        Models of cost for the roofline. Bytes are those of arrays and results unless given.
    public
        Exported from the package.
    updates
        Arrays among the parameters that it writes to, as far as its variants are host functions: launches say it
        themselves.
    in_place
        Its kernels read an element of every operand before they write that element of a result: ``out`` may be an
        operand without a copy.
    """

    name: str
    parameters: tuple[Parameter, ...]
    infer: Callable[[Problem], Sequence[Result]]
    reference: Callable[..., Any]
    variants: tuple[Variant, ...]
    doc: str
    tolerance: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    timed: tuple[Case, ...] = ()
    flops: Callable[[Problem], int] = lambda problem: 0
    bytes: Callable[[Problem], int] | None = None
    public: bool = True
    updates: tuple[str, ...] = ()
    in_place: bool = False

    def units(self, types: Sequence[str]) -> list[Unit]:
        """Return the sources a bundle should hold for these element types, each once."""
        found: dict[str, Unit] = {}
        for variant in self.variants:
            for unit in variant.units(types) if variant.units is not None else ():
                found.setdefault(unit.name, unit)
        return list(found.values())

    def signature(self) -> str:
        """Return the parameters as Python shows them."""
        shown: list[str] = []
        for p in self.parameters:
            if p.keyword_only and "*" not in shown:
                shown.append("*")
            shown.append(p.name if p.default is REQUIRED else f"{p.name}={p.default!r}")
        if "*" not in shown:
            shown.append("*")
        return ", ".join([*shown, "out=None", "stream=None"])


OPERATORS: dict[str, Operator] = {}
_functions: dict[str, Callable[..., Any]] = {}
_methods: dict[str, Callable[..., Any]] = {}


def register(
    operator: Operator, function: Callable[..., Any] | None = None, *, method: bool = False
) -> Callable[..., Any]:
    """Add an operator and return its function; one that launches by itself brings it.

    With ``method`` arrays have it too.

    Raises
    ------
    ValueError
        If the name is taken, or the operator contradicts itself.
    """
    if operator.name in OPERATORS:
        raise ValueError(f"an operator named '{operator.name}' is registered already; choose another name")
    _check(operator)
    if function is None:
        params = [(p.name, p.kind, p.keyword_only, () if p.default is REQUIRED else (p.default,))
                  for p in operator.parameters]  # fmt: skip
        function = _native.planned_operator(
            operator.name, params, operator.signature(), docstring(operator), operator.in_place
        )
    OPERATORS[operator.name] = operator
    if operator.public:
        _functions[operator.name] = function
    if method:
        as_method(function)
    return function


def _check(operator: Operator) -> None:
    """Refuse what would fail, or lose data, only when the operator is called."""
    if not operator.variants:
        raise ValueError(f"operator '{operator.name}' has no variants; give it at least one")
    for variant in operator.variants:
        where = f"operator '{operator.name}', variant '{variant.name}'"
        if variant.determinism not in STRENGTH:
            levels = ", ".join(map(repr, STRENGTH))
            raise ValueError(f"{where}: determinism must be one of {levels}, not {variant.determinism!r}")
        ways = [name for name in ("launch", "host", "compose") if getattr(variant, name) is not None]
        if len(ways) != 1:
            raise ValueError(f"{where}: one of launch, host and compose says how it runs; it has {ways or 'none'}")
    arrays = [p.name for p in operator.parameters if p.kind in ("array", "optional", "operand")]
    unknown = [name for name in operator.updates if name not in arrays]
    if unknown:
        raise ValueError(f"operator '{operator.name}' updates {unknown[0]!r}, which is none of its arrays: {arrays}")


def export(function: Function, name: str | None = None, *, method: bool = False) -> Function:
    """Export a plain function of a family beside its operators, or an operator under another name."""
    _functions[name or function.__name__] = function
    if method:
        as_method(function, name)
    return function


def as_method(function: Function, name: str | None = None) -> Function:
    """Make a function of an array a method of arrays, also where the function is not public."""
    _methods[name or function.__name__] = function
    return function


@cache
def load() -> Mapping[str, Operator]:
    """Import every family of the package, and return the operators."""
    package = Path(__file__).resolve().parent.parent
    for folder, prefix in ((package / "ops", "pygpukit.ops."), (package, "pygpukit.")):
        for info in pkgutil.iter_modules([str(folder)]):
            if info.ispkg and (folder / info.name / "rows.py").exists():
                importlib.import_module(f"{prefix}{info.name}.rows")
    return OPERATORS


def functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions of all families by name."""
    load()
    return dict(_functions)


def methods() -> dict[str, Callable[..., Any]]:
    """Return the functions of all families that arrays have as methods, by name."""
    load()
    return dict(_methods)


def docstring(operator: Operator) -> str:
    """Return the docstring of an operator's function."""
    summary, _, rest = operator.doc.strip().partition("\n")
    lines = [summary, *rest.rstrip().splitlines(), "", "Parameters", "----------"]
    kinds = {
        "operand": "GPUArray or number",
        "array": "GPUArray",
        "optional": "GPUArray, optional",
        "number": "number",
        "choice": "",
    }
    for p in operator.parameters:
        what = kinds.get(p.kind) or (type(p.default).__name__ if p.default not in (REQUIRED, None) else "optional")
        lines.append(f"{p.name} : {what}")
        if p.doc:
            lines.append(f"    {p.doc}")
    lines += [
        "out : GPUArray, optional", "    Where the result is written.",
        "stream : Stream, optional", "    The current one by default.",
        "", "Notes", "-----",
    ]  # fmt: skip
    classes = dict.fromkeys(v.determinism for v in operator.variants if v.launch is not None)
    lines.append("Determinism on a GPU: " + "; ".join(f"``{c}``: {MEANINGS[c]}" for c in classes) + ".")
    return "\n".join(lines) + "\n"
