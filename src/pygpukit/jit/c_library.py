"""Headers of the C library and of the CUDA runtime as a kernel needs them.

NVRTC has no header files, but it has most of what they declare built in: printf, assert, memcpy, malloc, the
mathematical functions, vector types. These texts add the rest: fixed-width integers, limits, and names in ``std``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["C_HEADERS"]

_BITS = (8, 16, 32, 64)
_INTEGERS = "".join(
    f"typedef {sign}{kind} {prefix}int{bits}_t;\n"
    for bits, kind in zip(_BITS, ("char", "short", "int", "long long"), strict=True)
    for sign, prefix in (("signed ", ""), ("unsigned ", "u"))
)
_POINTERS = "typedef long long intptr_t;\ntypedef unsigned long long uintptr_t;\n"
_INTEGER_NAMES = (*(f"{p}int{bits}_t" for bits in _BITS for p in ("", "u")), "intptr_t", "uintptr_t")

_INTEGER_LIMITS = {
    "CHAR_BIT": "8",
    "SCHAR_MIN": "(-128)",
    "SCHAR_MAX": "127",
    "UCHAR_MAX": "255",
    "CHAR_MIN": "SCHAR_MIN",
    "CHAR_MAX": "SCHAR_MAX",
    "SHRT_MIN": "(-32767 - 1)",
    "SHRT_MAX": "32767",
    "USHRT_MAX": "65535",
    "INT_MIN": "(-2147483647 - 1)",
    "INT_MAX": "2147483647",
    "UINT_MAX": "4294967295U",
    # A long has the host's size, and the compiler knows it.
    "ULONG_MAX": "(~0UL)",
    "LONG_MAX": "((long)(ULONG_MAX >> 1))",
    "LONG_MIN": "(-LONG_MAX - 1)",
    "LLONG_MAX": "9223372036854775807LL",
    "LLONG_MIN": "(-LLONG_MAX - 1)",
    "ULLONG_MAX": "18446744073709551615ULL",
}
_STDINT_LIMITS = {
    **{f"INT{bits}_MAX": f"{2 ** (bits - 1) - 1}{'LL' if bits == 64 else ''}" for bits in _BITS},
    **{f"INT{bits}_MIN": f"(-INT{bits}_MAX - 1)" for bits in _BITS},
    **{f"UINT{bits}_MAX": f"{2**bits - 1}{ {32: 'U', 64: 'ULL'}.get(bits, '') }" for bits in _BITS},
    "SIZE_MAX": "UINT64_MAX",
}
_FLOAT_LIMITS = {
    "FLT_RADIX": "2",
    "FLT_MANT_DIG": "24",
    "FLT_DIG": "6",
    "FLT_MIN_EXP": "(-125)",
    "FLT_MAX_EXP": "128",
    "FLT_MIN_10_EXP": "(-37)",
    "FLT_MAX_10_EXP": "38",
    "FLT_EPSILON": "1.19209289550781250e-7f",
    "FLT_MIN": "1.17549435082228751e-38f",
    "FLT_MAX": "3.40282346638528860e+38f",
    "DBL_MANT_DIG": "53",
    "DBL_DIG": "15",
    "DBL_MIN_EXP": "(-1021)",
    "DBL_MAX_EXP": "1024",
    "DBL_MIN_10_EXP": "(-307)",
    "DBL_MAX_10_EXP": "308",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "DBL_MIN": "2.2250738585072014e-308",
    "DBL_MAX": "1.7976931348623157e+308",
}
_MATH_MACROS = {
    "INFINITY": "__builtin_bit_cast(float, 0x7f800000)",
    "HUGE_VALF": "INFINITY",
    "HUGE_VAL": "((double)INFINITY)",
    "NAN": "__builtin_bit_cast(float, 0x7fffffff)",
    "M_E": "2.7182818284590452354",
    "M_LOG2E": "1.4426950408889634074",
    "M_LOG10E": "0.43429448190325182765",
    "M_LN2": "0.69314718055994530942",
    "M_LN10": "2.30258509299404568402",
    "M_PI": "3.14159265358979323846",
    "M_PI_2": "1.57079632679489661923",
    "M_PI_4": "0.78539816339744830962",
    "M_1_PI": "0.31830988618379067154",
    "M_2_PI": "0.63661977236758134308",
    "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT2": "1.41421356237309504880",
    "M_SQRT1_2": "0.70710678118654752440",
}
# Overloaded for float and double, and with an f for float alone.
_MATH_NAMES = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor "
    "fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf "
    "nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc "
)
_MATH = _MATH_NAMES.split()
_CLASSES = ("abs", "isfinite", "isinf", "isnan", "signbit")


def _macros(values: Mapping[str, str]) -> str:
    return "".join(f"#ifndef {name}\n#define {name} {text}\n#endif\n" for name, text in values.items())


def _in_std(names: tuple[str, ...] | list[str], types: str = "") -> str:
    return "namespace std {\n" + types + "".join(f"using ::{name};\n" for name in names) + "}\n"


_SIZES = "typedef decltype(sizeof(0)) size_t;\n"
_TEXTS = {
    "stdint.h": _INTEGERS + _POINTERS + _macros(_STDINT_LIMITS),
    "cstdint": "#include <stdint.h>\n" + _in_std(_INTEGER_NAMES),
    "inttypes.h": "#include <stdint.h>\n",
    "stddef.h": _macros({"offsetof": "__builtin_offsetof"}),
    "cstddef": "#include <stddef.h>\n" + _in_std(["ptrdiff_t"], _SIZES + "typedef decltype(nullptr) nullptr_t;\n"),
    "stdbool.h": "",
    "limits.h": _macros(_INTEGER_LIMITS),
    "climits": "#include <limits.h>\n",
    "float.h": _macros(_FLOAT_LIMITS),
    "cfloat": "#include <float.h>\n",
    "math.h": _macros(_MATH_MACROS),
    "cmath": "#include <math.h>\n" + _in_std([*(f"{name}{f}" for name in _MATH for f in ("", "f")), *_CLASSES]),
    "assert.h": "",
    "cassert": "",
    "stdio.h": "",
    "cstdio": _in_std(["printf"]),
    "stdlib.h": "",
    "cstdlib": _in_std(["abs", "labs", "llabs", "malloc", "free"], _SIZES),
    "string.h": "",
    "cstring": _in_std(["memcpy", "memset"], _SIZES),
    # Of the runtime, what a kernel uses is built in.
    "cuda.h": "#ifndef __cuda_cuda_h__\n#define __cuda_cuda_h__\n"
    "typedef struct CUtensorMap_st { alignas(64) unsigned long long opaque[16]; } CUtensorMap;\n#endif\n",
    "cuda_runtime.h": "",
    "cuda_runtime_api.h": "",
    "device_launch_parameters.h": "",
    "device_functions.h": "",
    "device_atomic_functions.h": "",
    "math_functions.h": "",
    "vector_functions.h": "",
    "builtin_types.h": "",
    "host_defines.h": "",
}

C_HEADERS: Mapping[str, str] = MappingProxyType({name: "#pragma once\n" + text for name, text in _TEXTS.items()})
"""Name to text."""
