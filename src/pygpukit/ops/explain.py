"""`explain`: which variant of an operator runs for given arguments, and why not the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops.registry import level, promises

__all__ = ["Explanation", "explain"]


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """What an operator does with given arguments; printing it shows the walk through its variants.

    Attributes
    ----------
    operator, variant
        Names of the operator and of the variant that runs.
    refused
        (name, reason) of each variant before it.
    determinism, asked
        What the bits of the result may depend on, and the level that is asked for (`deterministic`).
    launches
        A line per kernel launch and per piece of workspace.
    bytes, flops
        By the operator's models.
    """

    operator: str
    problem: str
    variant: str
    refused: tuple[tuple[str, str], ...]
    determinism: str
    launches: tuple[str, ...]
    bytes: int
    flops: int
    asked: str = "batch_invariant"

    def __str__(self) -> str:
        lines = [f"{self.operator}({self.problem})"]
        lines += [f"  no   {name}: {reason}" for name, reason in self.refused]
        kept = promises(level(self.determinism), level(self.asked))
        note = "" if kept else f"; no way that is {self.asked} accepts"
        lines.append(f"  runs {self.variant} ({self.determinism}{note})")
        lines += [f"         {line}" for line in self.launches]
        lines.append(f"  moves {self.bytes} bytes, {self.flops} operations")
        return "\n".join(lines)

    __repr__ = __str__


def explain(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Say which variant of an operator would run for these arguments, and why those before it would not.

    Parameters
    ----------
    operator : function
        An operator, such as `pygpukit.matmul`.
    *args, **kwargs
        As for the operator itself; nothing runs.

    Returns
    -------
    Explanation

    Raises
    ------
    TypeError
        If the function is no operator.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.explain(gp.sum, gp.ones((3, 4)), axis=1).operator
    'sum'
    """
    from pygpukit.ops import planner

    for value in (*args, *kwargs.values()):
        # Operands of other packages, such as quantised weights, know by which operator they run.
        hook = getattr(type(value), "__gp_explain__", None)
        if hook is not None:
            result: Explanation = hook(value, operator, args, kwargs)
            return result
    found = planner.describe(operator)
    out, stream = kwargs.pop("out", None), kwargs.pop("stream", None)
    values = planner.bind(found, args, kwargs)
    outputs = () if out is None else (out,) if isinstance(out, GPUArray) else tuple(out)
    arrays = [x for x in values if isinstance(x, GPUArray)]
    if not arrays:
        raise TypeError(f"{found.name}() needs at least one GPUArray")
    device = arrays[0].device
    with stream if stream is not None else nullcontext():
        sms = _native.lane_sm_count(device)
    problem = planner.problem_of(found, values, outputs, device, sms)
    variant, refused = planner.choose(found, problem)
    tensors = [*problem.inputs.values(), *problem.outputs]
    moved = found.bytes(problem) if found.bytes is not None else sum(int(t.nbytes) for t in tensors)
    return Explanation(
        operator=found.name,
        problem=", ".join(f"{n}={t!r}" for n, t in problem.inputs.items()),
        variant=variant.name,
        refused=tuple((v.name, reason) for v, reason in refused),
        determinism=variant.determinism,
        launches=tuple(variant.launch(problem).describe()) if variant.launch is not None else (),
        bytes=moved,
        flops=found.flops(problem),
        # Nothing is asked of the CPU device's functions.
        asked=problem.determinism if variant.host is None else variant.determinism,
    )
