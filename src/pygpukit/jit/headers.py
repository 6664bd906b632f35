"""Headers a kernel may include without a CUDA toolkit: ours, and fixed-width integers."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["builtin_headers", "used_headers"]

_COMMON = Path(__file__).resolve().parent.parent / "kernels" / "common"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>|(\S))', re.MULTILINE)

# NVRTC has no C library; these are the names kernels written for nvcc rely on.
_INTEGERS = "#pragma once\n" + "".join(
    f"typedef {sign}{kind} {prefix}int{bits}_t;\n"
    for bits, kind in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
    for sign, prefix in (("signed ", ""), ("unsigned ", "u"))
)
_POINTERS = "typedef long long intptr_t;\ntypedef unsigned long long uintptr_t;\n"
_IN_STD = "namespace std {\n" + "".join(
    f"using ::{name}_t;\n"
    for name in (*(f"{prefix}int{bits}" for bits in (8, 16, 32, 64) for prefix in ("", "u")), "intptr", "uintptr")
)


@functools.cache
def builtin_headers(with_c_library: bool = True) -> Mapping[str, str]:
    """Name to text of every header that is always there: ``pygpukit/*.cuh``, ``stdint.h`` and ``cstdint``.

    Parameters
    ----------
    with_c_library : bool, optional
        Give the last two; not where the caller has a folder with real ones.

    Examples
    --------
    >>> "cstdint" in builtin_headers()
    True
    """
    headers = {f"pygpukit/{path.name}": path.read_text("utf-8") for path in sorted(_COMMON.glob("*.cuh"))}
    if with_c_library:
        headers["stdint.h"] = _INTEGERS + _POINTERS
        headers["cstdint"] = "#pragma once\n#include <stdint.h>\n" + _IN_STD + "}\n"
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
