"""Importing `pygpukit.llm` is cheap, and importing the package does not do it."""

from __future__ import annotations

import json
from collections.abc import Callable

PROGRAM = """
import json, sys, time
import pygpukit
before = set(sys.modules)
start = time.perf_counter()
import pygpukit.llm
seconds = time.perf_counter() - start
new = sorted(set(sys.modules) - before)
print(json.dumps({"there": [n for n in before if n.startswith("pygpukit.llm")], "new": new, "ms": seconds * 1e3}))
"""


def test_import_brings_one_module(run_python: Callable[..., str]) -> None:
    report = json.loads(run_python(PROGRAM))
    print(f"import pygpukit.llm after pygpukit: {report['ms']:.1f} ms")
    assert report["there"] == []
    assert report["new"] == ["pygpukit.llm"], "the others are imported when a name is used"


def test_every_name_is_there(run_python: Callable[..., str]) -> None:
    program = (
        "import sys, pygpukit.llm as llm\n"
        "print([n for n in llm.__all__ if not hasattr(llm, n)], 'jinja2' in sys.modules, 'tokenizers' in sys.modules)"
    )
    assert run_python(program).split() == ["[]", "False", "False"]


def test_the_package_has_it_as_an_attribute(run_python: Callable[..., str]) -> None:
    assert run_python("import pygpukit as gp; print(gp.llm.SamplingParams().top_p)") == "1.0\n"
