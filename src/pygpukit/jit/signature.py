"""Kernels of a CUDA C++ source: names, template parameters and typed parameters, without a compiler."""

from __future__ import annotations

import difflib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from pygpukit.errors import KernelCompileError
from pygpukit.jit.declarators import DeclarationError, Param, angle_end, declare, render, split_arguments
from pygpukit.jit.tokens import Token, tokenize, words_of

__all__ = ["Param", "Signature", "VariableText", "find_signature", "parse_signatures", "variable_texts"]

_ATTRIBUTES = frozenset(
    {"__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__", "__declspec", "alignas"}
    | {"__align__", "__minnctapersm__"}
)
# Words that may stand behind the parameter list; any other word there means that a macro call came before the name.
_TRAILING = frozenset({"noexcept", "requires", "__attribute__", "__launch_bounds__", "__maxnreg__", "throw"})


# Words that put a variable into device memory.
_DEVICE_MEMORY = frozenset({"__device__", "__constant__", "__managed__"})


@dataclass(frozen=True)
class Signature:
    """One kernel.

    Attributes
    ----------
    name : str
        Qualified name, with template arguments once they are given: ``"ns::add<float>"``.
    params : tuple of Param
        Its parameters.
    template_params : tuple of str
        Names of its template parameters.
    line : int
        Line of the source, counted from 1; that of the include for a kernel in a header.
    extern_c : bool
        Has C linkage: the name in the compiled image is the plain name.
    params_end : int
        Offset in the source of the parenthesis that closes its parameter list; that of the macro's use or the include
        for a kernel that is not written there.
    """

    name: str
    params: tuple[Param, ...]
    template_params: tuple[str, ...]
    line: int
    extern_c: bool
    params_end: int


@dataclass(frozen=True)
class _TemplateParam:
    name: str
    default: tuple[str, ...] | None
    is_pack: bool


@dataclass(frozen=True)
class _Declaration:
    """A kernel as written; its types are read once the template arguments are known."""

    name: str
    params: tuple[tuple[str, ...], ...]
    template: tuple[_TemplateParam, ...] | None
    offset: int
    extern_c: bool
    params_end: int


@dataclass(frozen=True)
class _Scope:
    """What an open brace says about the declarations in it."""

    prefix: str
    is_namespace: bool
    extern_c: bool

    def inside(self, name: str) -> _Scope:
        # Nesting without end would make the prefix grow without end.
        prefix = f"{self.prefix}{name}::" if name and len(self.prefix) < 1000 else self.prefix
        return _Scope(prefix, self.is_namespace, self.extern_c)


@dataclass
class _Scan:
    """What one walk over the tokens finds."""

    declarations: list[_Declaration] = field(default_factory=list)
    aliases: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    variables: list[VariableText] = field(default_factory=list)


@dataclass(frozen=True)
class VariableText:
    """A declaration of variables in device memory, as written, without its semicolon."""

    texts: tuple[str, ...]
    prefix: str
    offset: int


def parse_signatures(
    source: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> list[Signature]:
    """All kernels of a source, in order; types that depend on a template parameter are given as it is named.

    Parameters
    ----------
    source : str
        CUDA C++ text.
    defines : mapping of str to str, optional
        Macros given to the compiler.
    headers : mapping of str to str, optional
        Texts for ``#include``.

    Raises
    ------
    KernelCompileError
        If a kernel has a parameter that kernels cannot have.

    Examples
    --------
    >>> [kernel] = parse_signatures("__global__ void scale(float* x, int n) {}")
    >>> kernel.name, [(param.name, param.code) for param in kernel.params]
    ('scale', [('x', '*f32'), ('n', 'i32')])
    """
    scan = _scan(tokenize(source, defines, headers))
    return [_signature(source, entry, entry.name, {}, scan) for entry in scan.declarations]


def find_signature(
    source: str,
    func: str | None = None,
    defines: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Signature:
    """The kernel that `func` asks for, or the only one.

    Parameters
    ----------
    source : str
        CUDA C++ text.
    func : str, optional
        Name, with its namespace where two kernels share a name, and with template arguments (``"add<float>"``).
    defines : mapping of str to str, optional
        Macros given to the compiler.
    headers : mapping of str to str, optional
        Texts for ``#include``.

    Raises
    ------
    KernelCompileError
        If there is no such kernel, or more than one; the text lists what there is.

    Examples
    --------
    >>> find_signature("template <class T> __global__ void fill(T* x, T v) {}", "fill<double>").params[1].code
    'f64'
    """
    scan = _scan(tokenize(source, defines, headers))
    if func is None:
        entry, arguments = _only(source, scan.declarations), None
    else:
        name, arguments = _split_func(source, func)
        entry = _named(source, scan.declarations, name)
    bindings = _bind(source, entry, arguments)
    spelled = _spell(entry.name, arguments if entry.template is None or arguments is not None else [])
    return _signature(source, entry, spelled, bindings, scan)


def variable_texts(
    source: str, defines: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> tuple[list[VariableText], Mapping[str, tuple[str, ...] | None]]:
    """Declarations of variables in device memory outside of functions, and the type aliases of the source."""
    scan = _scan(tokenize(source, defines, headers))
    return scan.variables, scan.aliases


def _signature(
    source: str, entry: _Declaration, name: str, bindings: Mapping[str, Sequence[str]], scan: _Scan
) -> Signature:
    line = source.count("\n", 0, entry.offset) + 1
    names = tuple(param.name for param in entry.template or ())
    # A template parameter hides an alias of the same name.
    hidden: dict[str, tuple[str, ...] | None] = dict.fromkeys(names)
    aliases = ChainMap(hidden, scan.aliases)
    try:
        params = tuple(declare(tokens, i, bindings, aliases) for i, tokens in enumerate(entry.params))
    except DeclarationError as error:
        raise KernelCompileError(f"kernel '{entry.name}' (line {line}): {error}", source=source, line=line) from None
    return Signature(name, params, names, line, entry.extern_c, entry.params_end)


def _only(source: str, declarations: list[_Declaration]) -> _Declaration:
    names = list(dict.fromkeys(entry.name for entry in declarations))
    if len(names) == 1:
        return _one_overload(source, declarations)
    if names:
        raise KernelCompileError(
            f"the source has {len(names)} kernels: {_listed(names)}; say which with func=", source=source
        )
    raise KernelCompileError(
        "the source has no __global__ function; a kernel is written as "
        "'extern \"C\" __global__ void name(float* x, int n) { ... }'",
        source=source,
    )


def _named(source: str, declarations: list[_Declaration], name: str) -> _Declaration:
    exact = [entry for entry in declarations if entry.name == name]
    found = exact or [entry for entry in declarations if entry.name.endswith(f"::{name}")]
    names = list(dict.fromkeys(entry.name for entry in found))
    if len(names) > 1:
        raise KernelCompileError(f"func='{name}' fits {_listed(names)}; give the namespace too", source=source)
    return _one_overload(source, found) if found else _missing(source, declarations, name)


def _one_overload(source: str, found: list[_Declaration]) -> _Declaration:
    if len({entry.params for entry in found}) > 1:
        raise KernelCompileError(
            f"kernel '{found[0].name}' is declared {len(found)} times with different parameters; "
            "give each version its own name",
            source=source,
        )
    return found[-1]


def _missing(source: str, declarations: list[_Declaration], name: str) -> NoReturn:
    names = list(dict.fromkeys(entry.name for entry in declarations))
    close = difflib.get_close_matches(name, names, n=1)
    remark = f"; did you mean '{close[0]}'?" if close else ""
    there = f"it has {_listed(names)}" if names else "it has no __global__ function"
    raise KernelCompileError(f"the source has no kernel '{name}': {there}{remark}", source=source)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


def _split_func(source: str, func: str) -> tuple[str, list[list[str]] | None]:
    """Name and template arguments; None for the latter where no angle brackets are given."""
    tokens = words_of(func)
    if tokens[:1] == ["::"]:
        tokens = tokens[1:]
    cut = tokens.index("<") if "<" in tokens else len(tokens)
    name = "".join(tokens[:cut])
    words = name.split("::")
    if not all(word.isidentifier() for word in words) or (cut < len(tokens) and tokens[-1] != ">"):
        raise KernelCompileError(
            f"func={func!r} is not a kernel's name: use 'name', 'namespace::name' or 'name<arguments>'", source=source
        )
    return name, split_arguments(tokens[cut + 1 : -1]) if cut < len(tokens) else None


def _spell(name: str, arguments: list[list[str]] | None) -> str:
    return name if arguments is None else f"{name}<{', '.join(render(argument) for argument in arguments)}>"


def _bind(source: str, entry: _Declaration, arguments: list[list[str]] | None) -> dict[str, Sequence[str]]:
    template = entry.template or ()
    names = ", ".join(param.name for param in template)
    if arguments is not None and entry.template is None:
        raise KernelCompileError(f"kernel '{entry.name}' is not a template; ask for func='{entry.name}'", source=source)
    given = arguments or []
    if len(given) > len(template) and not any(param.is_pack for param in template):
        raise KernelCompileError(
            f"kernel '{entry.name}' has {len(template)} template parameters ({names}), not {len(given)}", source=source
        )
    bindings: dict[str, Sequence[str]] = {}
    for i, param in enumerate(template):
        if param.is_pack:
            break
        if i < len(given):
            bindings[param.name] = given[i]
        elif param.default is not None:
            # A default may name the parameters before it.
            bindings[param.name] = [part for word in param.default for part in bindings.get(word, (word,))]
        else:
            raise KernelCompileError(
                f"kernel '{entry.name}' is a template and parameter {param.name} has no value: "
                f"ask for func='{entry.name}<{names}>' with types in place of the names",
                source=source,
            )
    return bindings


def _scan(tokens: list[Token]) -> _Scan:
    """Walk over the tokens once: namespaces, linkage, templates, aliases, kernels."""
    scan = _Scan()
    texts = [token.text for token in tokens]
    closing = _matching(texts)
    scopes = [_Scope("", True, False)]
    template: tuple[_TemplateParam, ...] | None = None
    extern_c = instantiation = False
    i = begin = looked_to = 0
    while i < len(texts):
        text = texts[i]
        step = i + 1
        scope = scopes[-1]
        opened: _Scope | None = None
        if text == "template":
            instantiation = texts[i + 1 : i + 2] != ["<"]
            if not instantiation:
                step = angle_end(texts, i + 1)
                template = _template_params(texts[i + 2 : step - 1])
        elif text == "extern" and texts[i + 1 : i + 2] == ['"C"']:
            extern_c = True
            step = i + 2
            opened = replace(scope, extern_c=True)
        elif text == "namespace":
            while step < len(texts) and texts[step] not in ("{", ";", "="):
                step += 1
            opened = scope.inside("".join(texts[i + 1 : step]))
        elif text in ("typedef", "using"):
            step = _statement_end(texts, closing, i)
            if scope.is_namespace and template is None:
                _alias(scan, text, texts[i + 1 : step])
        elif text == "__global__":
            step, entry = _kernel(texts, closing, i)
            if entry is not None and not instantiation and template != ():
                name, params = entry
                is_c = extern_c or scope.extern_c
                name = name if is_c else scope.prefix + name
                end = tokens[step - 1].offset
                scan.declarations.append(_Declaration(name, params, template, tokens[i].offset, is_c, end))
        elif text in _DEVICE_MEMORY and scope.is_namespace and template is None and i >= looked_to:
            looked_to, is_variable = _variable_end(texts, closing, i)
            if is_variable:
                prefix = "" if extern_c or scope.extern_c else scope.prefix
                scan.variables.append(VariableText(tuple(texts[begin:looked_to]), prefix, tokens[i].offset))
                step = looked_to
        elif text == "{":
            scopes.append(replace(scope, is_namespace=False))
        elif text == "}" and len(scopes) > 1:
            scopes.pop()
        if opened is not None and texts[step : step + 1] == ["{"]:
            scopes.append(opened)
            step += 1
            extern_c = False
            begin = step
        if text in (";", "{", "}", "typedef", "using"):
            template, extern_c, instantiation = None, False, False
            begin = step
        i = step
    return scan


def _matching(texts: list[str]) -> dict[int, int]:
    """Index of the bracket that closes each opening one."""
    pairs = {")": "(", "]": "[", "}": "{"}
    closing: dict[int, int] = {}
    stacks: dict[str, list[int]] = {"(": [], "[": [], "{": []}
    for i, text in enumerate(texts):
        if text in stacks:
            stacks[text].append(i)
        elif text in pairs and stacks[pairs[text]]:
            closing[stacks[pairs[text]].pop()] = i
    return closing


def _statement_end(texts: list[str], closing: Mapping[int, int], start: int) -> int:
    i = start
    while i < len(texts) and texts[i] != ";":
        i = closing.get(i, i) + 1 if texts[i] == "{" else i + 1
    return i


def _variable_end(texts: list[str], closing: Mapping[int, int], start: int) -> tuple[int, bool]:
    """Where the declaration that `start` stands in ends, and whether it declares variables, not a function."""
    i = start
    while i < len(texts) and texts[i] not in (";", "=", "{", "}"):
        if texts[i] in _ATTRIBUTES:
            i = closing.get(i + 1, i) + 1
        elif texts[i] == "(":
            return i, False
        else:
            i = closing.get(i, i) + 1 if texts[i] == "[" else i + 1
    end = _statement_end(texts, closing, i)
    return end, end < len(texts)


def _template_params(texts: list[str]) -> tuple[_TemplateParam, ...]:
    params = []
    for i, part in enumerate(split_arguments(texts)):
        equals = part.index("=") if "=" in part else len(part)
        head = part[:equals]
        name = head[-1] if len(head) > 1 and head[-1].isidentifier() else f"template parameter {i}"
        default = tuple(part[equals + 1 :]) if equals < len(part) else None
        params.append(_TemplateParam(name, default, "..." in head))
    return tuple(params)


def _alias(scan: _Scan, keyword: str, texts: list[str]) -> None:
    """Record ``typedef T name`` or ``using name = T``; anything more complicated stays unknown."""
    if keyword == "using":
        if len(texts) < 3 or texts[1] != "=":
            return
        name, target = texts[0], tuple(texts[2:])
    else:
        if len(texts) < 2 or any(text in ("(", "[", "{", ",") for text in texts):
            return
        name, target = texts[-1], tuple(texts[:-1])
    same = scan.aliases.setdefault(name, target) == target
    if not same:
        scan.aliases[name] = None


def _kernel(
    texts: list[str], closing: Mapping[int, int], start: int
) -> tuple[int, tuple[str, tuple[tuple[str, ...], ...]] | None]:
    """Read the declaration that follows ``__global__``: where to go on, and name and parameters when it is one."""
    name: list[str] = []
    i = start + 1
    while i < len(texts):
        text = texts[i]
        if text in (";", "{", "}", "="):
            break
        if text in _ATTRIBUTES or text == "[":
            bracket = i if text == "[" else i + 1
            i = closing.get(bracket, bracket) + 1
        elif text == "(":
            end = closing.get(i)
            if end is None or not name:
                break
            after = texts[end + 1] if end + 1 < len(texts) else ";"
            if not after.isidentifier() or after in _TRAILING:
                parts = split_arguments(texts[i + 1 : end])
                params = () if parts == [["void"]] else tuple(tuple(part) for part in parts)
                return end + 1, ("".join(name), params)
            # A call before the name is a macro that stands for an attribute.
            name = []
            i = end + 1
        elif text == "<" and name:
            # Arguments behind the name: a specialisation of a template declared elsewhere.
            i = angle_end(texts, i)
        elif text == "::":
            name.append(text)
            i += 1
        else:
            if name[-1:] != ["::"]:
                name = []
            if text.isidentifier():
                name.append(text)
            i += 1
    return max(i, start + 1), None
