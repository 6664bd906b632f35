"""Kernels read from CUDA C++ source."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.errors import KernelCompileError
from pygpukit.jit.signature import find_signature, parse_signatures


def codes(source: str, func: str | None = None, **defines: str) -> list[tuple[str, str]]:
    return [(param.name, param.code) for param in find_signature(source, func, defines).params]


def code(declaration: str) -> str:
    """The code of a kernel's only parameter."""
    [(name, found)] = codes(f"__global__ void k({declaration}) {{}}")
    assert name == "x"
    return found


def failure(source: str, func: str | None = None) -> str:
    with pytest.raises(KernelCompileError) as caught:
        find_signature(source, func)
    assert caught.value.source == source
    return str(caught.value)


def test_the_contracts_kernel() -> None:
    source = 'extern "C" __global__ void scale(float* x, float factor, int n) { x[0] *= factor; }'
    signature = find_signature(source, "scale")
    assert codes(source) == [("x", "*f32"), ("factor", "f32"), ("n", "i32")]
    assert (signature.name, signature.line, signature.extern_c) == ("scale", 1, True)


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("float x", "f32"),
        ("const double x", "f64"),
        ("bool x", "b1"),
        ("char x", "i8"),
        ("signed char x", "i8"),
        ("unsigned char x", "u8"),
        ("short int x", "i16"),
        ("unsigned short x", "u16"),
        ("unsigned x", "u32"),
        ("signed x", "i32"),
        ("long long x", "i64"),
        ("long long unsigned int x", "u64"),
        ("unsigned long long x", "u64"),
        ("size_t x", "u64"),
        ("std::size_t x", "u64"),
        ("ptrdiff_t x", "i64"),
        ("int64_t x", "i64"),
        ("std::uint8_t x", "u8"),
        ("::int32_t x", "i32"),
        ("__half x", "f16"),
        ("half x", "f16"),
        ("__nv_bfloat16 x", "bf16"),
        ("f16 x", "f16"),
        ("pgk::bf16 x", "bf16"),
        ("cuFloatComplex x", "c64"),
        ("cuda::std::complex<double> x", "c128"),
        ("e4m3 x", "e4m3"),
        ("float4 x", "struct"),
        ("struct Config x", "struct"),
        ("ns::Config<int, 3> x", "struct"),
        ("const __grid_constant__ CUtensorMap x", "tensormap"),
        ("const CUtensorMap* x", "const*void"),
        ("my::half x", "struct"),
        ("float* x", "*f32"),
        ("float *__restrict__ x", "*f32"),
        ("const float* __restrict__ x", "const*f32"),
        ("float const * const x", "const*f32"),
        ("volatile int* x", "*i32"),
        ("unsigned long long* x", "*u64"),
        ("e4m3* x", "*e4m3"),
        ("const pgk::e5m2* x", "const*e5m2"),
        ("bool* x", "*b1"),
        ("void* x", "*void"),
        ("const void* x", "const*void"),
        ("float4* x", "*void"),
        ("const Config* x", "const*void"),
        ("float** x", "*void"),
        ("const float** x", "*void"),
        ("float* const* x", "const*void"),
        ("float x[4]", "*f32"),
        ("const int x[]", "const*i32"),
        ("float x[][4]", "*f32"),
        ("float (*x)[4]", "*f32"),
        ("void (*x)(int, float)", "*void"),
        ("int x = 3", "i32"),
        ("int x = f(1, 2)", "i32"),
        ("[[maybe_unused]] int x", "i32"),
        ("__attribute__((aligned(8))) float x", "f32"),
        ("alignas(16) Config x", "struct"),
        ("std::conditional_t<(3>2), int, float>* x", "*void"),
        ("typename Traits<float>::type x", "struct"),
    ],
)
def test_a_parameters_code(declaration: str, expected: str) -> None:
    assert code(declaration) == expected


def test_types_are_spelled_as_c() -> None:
    [signature] = parse_signatures("__global__ void k(float const *a, unsigned   long b, float* const* c, void(*f)());")
    assert [param.ctype for param in signature.params] == [
        "const float*",
        "unsigned long",
        "float* const*",
        "void(*)(...)",
    ]


def test_unnamed_parameters_are_numbered() -> None:
    assert codes("__global__ void k(float*, unsigned, const char, S) {}") == [
        ("arg0", "*f32"),
        ("arg1", "u32"),
        ("arg2", "i8"),
        ("arg3", "struct"),
    ]


@pytest.mark.parametrize("params", ["", "void", " /* none */ "])
def test_no_parameters(params: str) -> None:
    assert codes(f"__global__ void k({params}) {{}}") == []


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void",
        "void __global__",
        "static __global__ void",
        "__global__ static void",
        "__global__ void __launch_bounds__(256, 2)",
        "__launch_bounds__(N * (2 + 1)) __global__ void",
        "__global__ __cluster_dims__(2, 1, 1) void",
        "__global__ void BOUNDS(256)",
        "[[noreturn]] __global__ [[gnu::cold]] void",
        "__global__ __attribute__((used)) void",
        'extern "C" __global__ void',
    ],
)
def test_the_name_is_found_behind_attributes(head: str) -> None:
    signature = find_signature(f"{head} name(float* x) noexcept {{}}")
    assert signature.name == "name"
    assert [param.code for param in signature.params] == ["*f32"]


def test_what_is_not_code_is_not_read() -> None:
    source = """
    // __global__ void a(int x); \\
       __global__ void b(int x);
    /* __global__ void c(int x); */
    const char* s = "__global__ void d(int x);\\"";
    const char* r = R"x(__global__ void e(int x); )" )x";
    char q = '"'; int n = 1'000'000;
    #define LATER __global__ void \\
        f(int x)
    #if 0
    __global__ void g(int x);
    #elif 1
    __global__ void yes(int x /* , int y */) {}
    #else
    __global__ void h(int x);
    #endif
    """
    assert [signature.name for signature in parse_signatures(source)] == ["yes"]
    assert find_signature(source).line == 13


def test_conditionals_follow_what_is_known() -> None:
    source = "#ifdef HALF\n#define T __half\n#else\n#define T float\n#endif\n__global__ void k(T* x, T y) {}"
    assert codes(source) == [("x", "*f32"), ("y", "f32")]
    assert codes(source, HALF="1") == [("x", "*f16"), ("y", "f16")]


def test_what_only_the_compiler_knows_stays_open() -> None:
    source = (
        "#if __CUDA_ARCH__ >= 800\n#define T float\n#else\n#define T double\n#endif\n__global__ void k(T* x, T y) {}"
    )
    assert codes(source) == [("x", "*void"), ("y", "struct")]


def test_macros_and_aliases_are_replaced() -> None:
    assert codes("#define R float\n__global__ void k(R* x, const R y) {}") == [("x", "*f32"), ("y", "f32")]
    assert codes("__global__ void k(T* x) {}", T="unsigned char") == [("x", "*u8")]
    assert codes("typedef float real; using P = real*; __global__ void k(const real* a, P b, const P c, P* d);") == [
        ("a", "const*f32"),
        ("b", "*f32"),
        ("c", "*f32"),
        ("d", "*void"),
    ]
    # Defined in two ways: which one holds is not known.
    two = "namespace a { using T = int; } namespace b { using T = float; __global__ void k(T x); }"
    assert codes(two, "k") == [("x", "struct")]
    # An alias inside a function says nothing about the kernel.
    assert codes("using T = int; void f() { using T = float; } __global__ void k(T x);") == [("x", "i32")]


def test_a_macro_may_write_the_head() -> None:
    signature = find_signature('#define KERNEL extern "C" __global__ void\nKERNEL k(int n) {}')
    assert (signature.name, signature.extern_c, signature.line) == ("k", True, 2)


def test_macros_with_arguments_may_write_kernels() -> None:
    source = """
    #define UNRELATED(x) x
    #define KERNEL(op, tag, T, ...) \\
        extern "C" __global__ void pgk_##op##_##tag(T* out, const T* in , __VA_ARGS__) {}
    #define ALL(op) KERNEL(op, f32, float, int n, long long m) KERNEL(op, f64, double, int n, long long m)
    ALL(add)
    ALL(mul)
    int KERNEL;
    """
    names = [signature.name for signature in parse_signatures(source)]
    assert names == ["pgk_add_f32", "pgk_add_f64", "pgk_mul_f32", "pgk_mul_f64"]
    assert codes(source, "pgk_mul_f64") == [("out", "*f64"), ("in", "const*f64"), ("n", "i32"), ("m", "i64")]
    assert find_signature(source, "pgk_mul_f64").line == 7
    assert codes("#define K(n, T) __global__ void n(T x);\nK(k, int)\n#undef K\nK(z, float)", "k") == [("x", "i32")]
    assert "no kernel 'z'" in failure("#define K(n) __global__ void n();\n#undef K\nK(z)", "z")


def test_headers_are_followed() -> None:
    headers = {
        "types.h": '#pragma once\n#include "more.h"\ntypedef float real;\n',
        "more.h": '#include "types.h"\n#define COUNT long long\n__global__ void inside(real* x);\n',
    }
    source = '\n#include "types.h"\n#include <more.h>\n__global__ void k(real* x, COUNT n);'
    assert [param.code for param in find_signature(source, "k", None, headers).params] == ["*f32", "i64"]
    assert find_signature(source, "inside", None, headers).line == 2
    assert [param.code for param in find_signature(source, "k").params] == ["*void", "struct"]


def test_namespaces() -> None:
    source = "namespace a { inline namespace b { namespace { __global__ void k(int n) {} } } } __global__ void z() {}"
    # An inline namespace is part of the spelling here; the compiler accepts it.
    names = [signature.name for signature in parse_signatures(source)]
    assert names[1] == "z"
    assert find_signature(source, "k").name == names[0]
    nested = "namespace a::b { __global__ void k(); } namespace c { __global__ void k(); }"
    assert find_signature(nested, "a::b::k").name == "a::b::k"
    assert find_signature(nested, "::c::k").name == "c::k"
    assert "a::b::k, c::k" in failure(nested, "k")
    linkage = 'namespace a { extern "C" { __global__ void k(); } __global__ void z(); }'
    assert [(s.name, s.extern_c) for s in parse_signatures(linkage)] == [("k", True), ("a::z", False)]


TEMPLATE = """
template <typename T, int N = 4, class U = T>
__global__ void add(const T* a, U* b, T v, const U c[N], size_t n) {}
"""


def test_template_arguments_are_put_in() -> None:
    signature = find_signature(TEMPLATE, "add< float >")
    assert signature.name == "add<float>"
    assert signature.template_params == ("T", "N", "U")
    assert codes(TEMPLATE, "add<float>") == [
        ("a", "const*f32"),
        ("b", "*f32"),
        ("v", "f32"),
        ("c", "const*f32"),
        ("n", "u64"),
    ]
    assert [found for _, found in codes(TEMPLATE, "add<unsigned char, (3 > 2), double>")][:3] == [
        "const*u8",
        "*f64",
        "u8",
    ]
    assert [found for _, found in codes(TEMPLATE, "add<float*, 2>")][:3] == ["const*void", "*void", "*f32"]
    assert [found for _, found in codes(TEMPLATE, "add<My<int, 2>>")][:3] == ["const*void", "*void", "struct"]


def test_template_arguments_are_checked() -> None:
    assert "T has no value" in failure(TEMPLATE)
    assert "T has no value" in failure(TEMPLATE, "add<>")
    assert "3 template parameters (T, N, U), not 4" in failure(TEMPLATE, "add<int, 1, int, 2>")
    assert "not a template" in failure("__global__ void k();", "k<int>")
    assert find_signature("template <class T = float> __global__ void k(T* x);").name == "k<>"
    assert codes("template <class... Ts> __global__ void k(int n);", "k<int, float, char>") == [("n", "i32")]


def test_specialisations_and_repeated_declarations_are_one_kernel() -> None:
    source = """
    __global__ void plain(int n);
    template <class T> __global__ void k(T n) {}
    template <> __global__ void k<int>(int n) {}
    template __global__ void k<float>(float);
    __global__ void plain(int n) {}
    """
    assert codes(source, "k<int>") == [("n", "i32")]
    assert find_signature(source, "plain").line == 6


def test_errors_say_what_there_is() -> None:
    assert "no __global__ function" in failure("int main() {}")
    assert "2 kernels: add, mul" in failure("__global__ void add(); __global__ void mul();")
    assert "did you mean 'add'" in failure("__global__ void add(); __global__ void mul();", "ad")
    assert "it has no __global__ function" in failure("", "k")
    assert "different parameters" in failure("__global__ void k(int); __global__ void k(float);", "k")
    assert "not a kernel's name" in failure("__global__ void k();", "k(int)")
    assert "not a kernel's name" in failure("__global__ void k();", "")
    many = " ".join(f"__global__ void k{i}();" for i in range(40))
    assert "and 28 more" in failure(many)


def test_impossible_parameters_are_named_with_their_line() -> None:
    with pytest.raises(KernelCompileError, match=r"'k' \(line 2\): parameter 1 \(y\) is a reference") as caught:
        find_signature("\n__global__ void k(int x, float& y) {}")
    assert caught.value.line == 2
    assert "variadic" in failure("__global__ void k(int x, ...) {}")
    assert "has type void" in failure("__global__ void k(void x) {}")
    assert "has no type" in failure("__global__ void k(int x, ) {}")


HOSTILE = [
    "/*" * 50_000,
    '"' * 100_001,
    'R"(' * 50_000,
    "'" * 100_001,
    "#if X\n#define A B\n" * 30_000,
    "template<" * 50_000,
    "__global__ " * 50_000,
    "__global__ k(" * 50_000,
    "__global__ void k(" + "a<" * 50_000 + ")",
    "__global__ void k(" + "int*" * 50_000 + ")",
    "__global__ " + "a::" * 50_000 + "k()",
    "namespace a {" * 50_000 + "__global__ void k() {}",
    "using a = " * 50_000,
    "typedef {" * 50_000,
    "(" * 100_000,
    "__attribute__(" * 50_000,
    "".join(f"#define A{i} A{i + 1} A{i + 1}\n" for i in range(3000)) + "A0 " * 3000 + "__global__ void k(A0 x);",
    "".join(f"using A{i} = A{i + 1};" for i in range(3000)) + "__global__ void k(A0 x);",
    "#define A A\n__global__ void k(A x);",
    "#define K(x) K(x) K(x) __global__ void k();\nK(1)",
    "#define K(x) x x x x __global__ void k();\n" + "K(" * 20_000,
    "#define K(x) x x x x __global__ void k();\n" + "K(" * 9 + ")" * 9,
    "#define K(" + "a," * 20_000 + "\nK(",
    "#define K(a) __global__ a##a##a##a##a##a\n" + "K(K(K(K(abc)))) " * 2000,
    "using A = A; __global__ void k(A* x);",
]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.timeout(30)
def test_hostile_text_ends(source: str) -> None:
    with suppress(KernelCompileError):
        find_signature(source)


FRAGMENTS = [
    *["__global__", "void", "k", "(", ")", "{", "}", "<", ">", "template", "namespace", "class T", "typedef", "using"],
    *['extern "C"', "=", ",", "::", ";", "*", "&", "const", "float", "[", "]", "...", "//", "/*", "*/", '"', "'", "\\"],
    *[
        "\n",
        "\n#define A ",
        "\n#if 0\n",
        "\n#else\n",
        "\n#endif\n",
        "\n#ifdef A\n",
        'R"x(',
        "x",
        "A",
        "3",
        "__launch_bounds__",
    ],
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60), st.sampled_from([None, "k", "k<A>", "x::k"]))
@settings(max_examples=400, deadline=None)
def test_any_text_gives_a_signature_or_an_error(parts: list[str], func: str | None) -> None:
    try:
        signature = find_signature(" ".join(parts), func)
    except KernelCompileError:
        return
    assert signature.name
    for param in signature.params:
        assert param.name
        assert param.ctype


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_characters_are_read(text: str) -> None:
    with suppress(KernelCompileError):
        parse_signatures(text)
