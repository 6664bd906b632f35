"""Pages of the reference, made of docstrings when the documentation is built; mkdocs calls `on_files` and `on_nav`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import pygpukit
from pygpukit.ops import registry

HEADING = re.compile(r"^(\S.*)\n-{3,}$", re.MULTILINE)
# Families of operators, by the package that registers them; a family that is not here is shown under its own name.
TITLES = {
    "attention": "Attention and caches of keys and values",
    "elementwise": "Elementwise operators",
    "fft": "Operators of Fourier transforms",
    "gemm": "Matrix products",
    "index": "Indexing",
    "nn": "Operators of neural networks",
    "products": "Products of arrays",
    "quant": "Products with quantised weights",
    "reduce": "Reductions and scans",
    "sampling": "Sampling",
    "shape": "Shapes, joining, padding",
    "sort": "Sorting, searching, counting",
}
MODULES = {
    "audio": "Audio: pygpukit.audio",
    "fft": "Fourier transforms: gp.fft",
    "lib": "Windows: gp.lib.stride_tricks",
    "linalg": "Linear algebra: gp.linalg",
    "quant": "Quantised weights: gp.quant",
    "random": "Random numbers: gp.random",
    "array_api": "The array API standard: pygpukit.array_api",
    "memory": "Memory: gp.memory",
    "scheduler": "Scheduler: gp.scheduler",
    "ring": "Ring kernels: gp.ring",
}


class Entry(NamedTuple):
    """A public name and what it stands for."""

    name: str
    value: Any


def family(name: str, function: Callable[..., Any]) -> str:
    """Return the package that a public operator comes from."""
    module = getattr(function, "__module__", "")
    operator = registry.OPERATORS.get(getattr(function, "__name__", name))
    if operator is not None and not inspect.isfunction(function):
        module = inspect.unwrap(getattr(operator.infer, "__func__", operator.infer)).__module__
    parts = module.split(".")
    return parts[2] if parts[:2] == ["pygpukit", "ops"] and len(parts) > 2 else parts[-1 if len(parts) < 2 else 1]


def pages() -> dict[str, tuple[str, list[Entry]]]:
    """Return titles and entries of all pages by file name, each public name of the package on one of them."""
    found: dict[str, tuple[str, list[Entry]]] = {}
    functions = registry.functions()
    for name in sorted(functions):
        key = family(name, functions[name])
        found.setdefault(key, (TITLES.get(key, f"Operators: {key}"), []))[1].append(Entry(name, functions[name]))
    core = [Entry(name, getattr(pygpukit, name)) for name in sorted(pygpukit.__all__) if name not in functions]
    plain = [e for e in core if not isinstance(e.value, ModuleType)]
    errors = [e for e in plain if isinstance(e.value, type) and issubclass(e.value, BaseException)]
    found["package"] = ("Arrays, kernels, streams, devices", [e for e in plain if e not in errors])
    found["errors"] = ("Errors", errors)
    for module, title in MODULES.items():
        if hasattr(pygpukit, module):
            value = getattr(pygpukit, module)
            names = getattr(value, "__all__", None) or [n for n in vars(value) if not n.startswith("_")]
            entries = [Entry(n, getattr(value, n)) for n in sorted(names) if hasattr(value, n)]
            key = f"module-{module.replace('_', '-')}"
            found[key] = (title, [e for e in entries if not isinstance(e.value, ModuleType)])
    return {f"reference/{key}.md": page for key, page in sorted(found.items(), key=lambda item: item[1][0])}


def signature(name: str, value: Any) -> str:
    """Return a call of the name as Python shows it."""
    try:
        return f"{name}{inspect.signature(value)}"
    except (TypeError, ValueError):
        return name


def text_of(docstring: str) -> str:
    """Return a NumPy style docstring as Markdown."""
    pieces = HEADING.split(docstring)
    lines = [pieces[0].strip(), ""]
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        lines += [f"**{heading}**", ""]
        lines += _examples(body) if heading == "Examples" else _section(heading, body)
    # Double quotes of code in docstrings are single ones in Markdown.
    return re.sub(r"(?<!`)``(?!`)", "`", "\n".join(lines))


def _examples(body: str) -> Iterable[str]:
    for block in re.split(r"\n\s*\n", body.strip("\n")):
        yield from (["```pycon", block, "```", ""] if block.lstrip().startswith(">>>") else [block, ""])


def _section(heading: str, body: str) -> Iterable[str]:
    if heading in ("Notes", "See Also", "Warnings"):
        return [body.strip(), ""]
    items: list[tuple[str, list[str]]] = []
    for line in body.strip("\n").splitlines():
        if line and not line[0].isspace():
            name, _, kind = line.partition(" : ")
            items.append((f"- `{name}`" + (f" ({kind})" if kind else ""), []))
        elif line.strip() and items:
            items[-1][1].append(line.strip())
    return [*(f"{head}: {' '.join(rest)}" if rest else head for head, rest in items), ""]


def _of_class(value: type) -> Iterable[str]:
    for name, member in sorted(vars(value).items()):
        doc = inspect.getdoc(member) if not name.startswith("_") else None
        if doc:
            yield f"- `{name}`: {' '.join(doc.split(chr(10) * 2)[0].split())}"


def render(title: str, entries: list[Entry]) -> str:
    """Return a page."""
    lines = [f"# {title}", ""]
    for name, value in entries:
        shown = signature(name, value) if callable(value) and not isinstance(value, type) else name
        lines += [f"## `{name}`", "", "```python", shown, "```", "", text_of(inspect.getdoc(value) or "")]
        if isinstance(value, type):
            lines += ["", *_of_class(value), ""]
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of the site."""
    from mkdocs.structure.files import File

    for path, (title, entries) in pages().items():
        files.append(File.generated(config, path, content=render(title, entries)))
    return files


def on_config(config: Any) -> Any:
    """Put the pages into the navigation, below what is written by hand."""
    made = [{title: path} for path, (title, _) in pages().items()]
    for section in config["nav"] or []:
        if "Reference" in section:
            section["Reference"] = [*section["Reference"], {"All names": made}]
    return config
