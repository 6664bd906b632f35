"""The stub of the native module has the names its classes have at run time, and no others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pygpukit import _pygpukit_rust as native

CLASSES = ["GPUArray", "Stream", "Event", "CudaGraph", "GraphPool", "Kernel", "MemoryPool", "Device", "DataType"]
CLASSES += ["PinnedMemory", "TransferHandle", "QosTaskMeta", "QosEvaluation", "QosPolicyEvaluator"]
CLASSES += ["MessageBase", "RingQueue", "RingLink", "ContextBase", "FixedArray"]
CLASSES += ["PartitionLimits", "PartitionConfig", "PartitionManager"]
# How the interpreter does things, not what a caller can do.
INTERNAL = {"__module__", "__vectorcalloffset__"}
# `object` has these too, but with another meaning or another type of the result.
REDEFINED = {"GPUArray": {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}}


def stub_names(repository: Path) -> dict[str, set[str]]:
    tree = ast.parse((repository / "src/pygpukit/_pygpukit_rust.pyi").read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                item.name if isinstance(item, ast.FunctionDef) else ast.unparse(item.target)
                for item in node.body
                if isinstance(item, (ast.FunctionDef, ast.AnnAssign))
            }
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_names_of_a_class(repository: Path, name: str) -> None:
    at_run_time = set(dir(getattr(native, name)))
    in_stub = stub_names(repository)[name]
    wanted = at_run_time - set(dir(object)) - INTERNAL | REDEFINED.get(name, set())
    assert not sorted(wanted - in_stub), "missing from the stub"
    assert not sorted(in_stub - at_run_time), "only in the stub"
