"""Headers a kernel may include without a CUDA toolkit: ours, and those of the C library."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from pygpukit.jit.c_library import C_HEADERS

__all__ = ["builtin_headers", "included_names", "used_headers"]

_KERNELS = Path(__file__).resolve().parent.parent / "kernels"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>|(\S))', re.MULTILINE)


@functools.cache
def builtin_headers(with_c_library: bool = True) -> Mapping[str, str]:
    """Name to text of every header that is always there: ``pygpukit/*.cuh`` of all families, and the C library's.

    Parameters
    ----------
    with_c_library : bool, optional
        Give the latter; not where the caller has a folder with real ones.

    Examples
    --------
    >>> "cstdint" in builtin_headers()
    True
    """
    headers = {f"pygpukit/{path.name}": path.read_text("utf-8") for path in sorted(_KERNELS.glob("*/*.cuh"))}
    if with_c_library:
        headers.update(C_HEADERS)
    return MappingProxyType(headers)


def used_headers(source: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers a source includes, itself or through another.

    Only these decide what is compiled, so only these belong in a cache key. An include the compiler would skip is
    counted too, which costs nothing; an include whose name is a macro makes all of them count.
    """
    used: dict[str, str] = {}
    texts = [source]
    while texts:
        for match in _INCLUDE.finditer(texts.pop()):
            if match[3] is not None:
                return dict(headers)
            name = match[1] if match[1] is not None else match[2]
            if name in headers and name not in used:
                used[name] = headers[name]
                texts.append(headers[name])
    return used


def included_names(text: str) -> Iterator[str]:
    """Names a text includes, but for those that are macros.

    Examples
    --------
    >>> list(included_names('#include <mma.h>\\n#include "my.h"\\n'))
    ['mma.h', 'my.h']
    """
    for match in _INCLUDE.finditer(text):
        if match[3] is None:
            yield match[1] if match[1] is not None else match[2]
