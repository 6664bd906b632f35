"""The variant of a kernel that runs a range of its blocks: what is rewritten, what is refused, and that it compiles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.errors import KernelCompileError
from pygpukit.jit import jit
from pygpukit.jit.compiler import compile_image
from pygpukit.jit.signature import find_signature
from pygpukit.jit.slicing import NotSliceableError, refuse_state, sliced_source

PLAIN = """
__device__ float twice(float x) { return 2 * x; }
extern "C" __global__ void scale(float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = twice(x[i]) + gridDim.x;
}
"""


def sliced(source: str, func: str | None = None, sure: bool = False, **options: Any) -> str:
    signature = find_signature(source, func, options.get("defines"), options.get("headers"))
    return sliced_source(source, signature, **{"defines": {}} | options, sure=sure)


def compiled(source: str, func: str | None = None, kind: Any = "cubin", **options: Any) -> bytes:
    """Image of the variant for sm_90a."""
    signature = find_signature(source, func, options.get("defines"), options.get("headers"))
    text = sliced_source(source, signature, **{"defines": {}} | options)
    expressions = () if signature.extern_c else (signature.name,)
    headers = options.get("headers")
    return compile_image(
        text, name=signature.name, arch="90a", headers=headers, expressions=expressions, kind=kind
    ).image


def test_lines_keep_their_numbers_and_nothing_else_moves() -> None:
    text = sliced(PLAIN)
    preamble, own = text.split("#line 1\n")
    assert "#define blockIdx" in preamble
    assert "#define gridDim" in preamble
    before, after = PLAIN.splitlines(), own.splitlines()
    assert len(before) == len(after)
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed == [2, 3]
    assert after[2].startswith(before[2][:-1])
    assert after[2].count("unsigned") == 4


@pytest.mark.parametrize(
    ("head", "wanted"),
    [
        ("__global__ void k() {}", "k(unsigned "),
        ("__global__ void k(void) {}", "k(unsigned "),
        ("__global__ void k(int n) {}", "k(int n, unsigned "),
        ("#define NOTHING\n__global__ void k(NOTHING) {}", "k(NOTHINGunsigned "),
    ],
)
def test_parameters_are_added_at_the_end(head: str, wanted: str) -> None:
    assert wanted in sliced(head).replace("NOTHING unsigned", "NOTHINGunsigned")


def test_names_do_not_clash() -> None:
    text = sliced("__global__ void k(int pgk_slice_first, int pgk_slice) {}")
    assert "unsigned pgk_slicex_first" in text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('__global__ void k(int* x) { asm("mov.u32 %0, %ctaid.x;" : "=r"(x[0])); }', "assembly"),
        (
            '__device__ int f() { int r; asm("mov.u32 %0, %nctaid.x;" : "=r"(r)); return r; } __global__ void k() {}',
            "ass",
        ),
        ("#include <cooperative_groups.h>\n__global__ void k() {}", "cooperative groups"),
        ("__global__ void __cluster_dims__(2, 1, 1) k() {}", "clusters"),
        ("__global__ void j() {} __global__ void k() { j<<<1, 1>>>(); }", "launches"),
        ("#undef blockIdx\n__global__ void k() {}", "macros"),
        ("__global__ void k(int* x);", "body"),
        ("#define K(name) __global__ void name(int* x) { x[0] = blockIdx.x; }\nK(k)", "body"),
        ("__global__ void k(int* x)\n#if FOO + 1\n{\n#else\n{\n#endif\n}", "directives"),
        ("__global__ void k(volatile int* x) { while (!x[0]) {} }", "wait for each other"),
        ("__global__ void k(int* x) { while (atomicAdd(x, 0) == 0) {} }", "wait for each other"),
        ('__global__ void k(int* x) { asm("ld.acquire.gpu.u32 %0, [%1];" :: ); }', "wait for each other"),
        ("__global__ void k(int* x) { __nanosleep(100); }", "wait for each other"),
        ("#include <cub/cub.cuh>\n__global__ void k() {}", "'cub/cub.cuh'"),
    ],
)
def test_refusals(source: str, reason: str) -> None:
    with pytest.raises(NotSliceableError, match=reason):
        sliced(source, "k")


def test_what_only_looks_bad_is_left_to_who_is_sure() -> None:
    source = '__global__ void k(volatile int* x) { asm volatile("nop;"); x[0] = 1; }'
    assert "pgk_slice" in sliced(source, sure=True)
    # Volatile assembly alone is nothing to worry about.
    assert "pgk_slice" in sliced('__global__ void k(int* x) { asm volatile("nop;"); x[0] = 1; }')


def test_waits_of_other_kernels_do_not_matter() -> None:
    other = "__global__ void j(volatile int* x) { while (!x[0]) {} }"
    kernel = "__global__ void k(int* x) { x[blockIdx.x] = 1; }"
    for source in (f"{other}\n{kernel}", f"{kernel}\n{other}"):
        assert "pgk_slice" in sliced(source, "k")
        with pytest.raises(NotSliceableError, match="wait for each other"):
            sliced(source, "j")


@pytest.mark.nvrtc
def test_another_version_of_the_kernel_is_never_taken_for_it() -> None:
    body = "{ x[blockIdx.x] = 1; }"
    with pytest.raises(KernelCompileError, match="pgk_slice_"):
        compiled(f"#if 2 - 1\n__global__ void k(int* x) {body}\n#else\n__global__ void k(int* x) {body}\n#endif")


def test_a_header_included_by_an_option_is_refused() -> None:
    with pytest.raises(NotSliceableError, match="before it"):
        sliced(PLAIN, options=["--pre-include=all.h"])


@given(st.text(alphabet='{}()[]<>;,#"\\\n blockIdx.xvoid__global__k=', max_size=80))
def test_any_text_is_rewritten_or_refused(text: str) -> None:
    source = f"{text}\n__global__ void k(int* x) {{ x[0] = 1; }}\n{text}"
    try:
        made = sliced(source, "k", sure=True)
    except (NotSliceableError, KernelCompileError):
        return
    assert made.split("#line 1\n", 1)[1].count("\n") == source.count("\n")


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("source", "func"),
    [
        (PLAIN, None),
        ("template <class T, int N> __global__ void k(T* x) { x[blockIdx.x * N] = gridDim.y; }", "k<double, 3>"),
        ("namespace a { __global__ void k(int* x) { x[blockIdx.z] = 1; } }", "a::k"),
        ("#define I (blockIdx.x * blockDim.x + threadIdx.x)\n__global__ void k(int* x) { x[I] = 1; }", None),
        ("#define I(n) (blockIdx.x * n)\n__global__ void k(int* x) { x[I(4)] = 1; }", None),
        ("__global__ void k(int* x) { auto f = [=](int i) { return blockIdx.x + i; }; x[f(1)] = 1; }", None),
        ("__global__ void j(int* x) { x[blockIdx.x] = 1; } __global__ void k(int* x) { x[blockIdx.x] = 2; }", "k"),
        (
            "__device__ int f(uint3 blockIdx) { return blockIdx.x; } __global__ void k(int* x) { x[0] = f(blockIdx); }",
            "k",
        ),
        ('#include "pygpukit/f16.cuh"\n__global__ void k(pgk::f16* x) { x[blockIdx.x] = x[0]; }', None),
        ("__global__ void __launch_bounds__(128) k(float* x) { x[blockIdx.x] = sinf(x[0]); }", None),
    ],
)
@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_variants_compile(source: str, func: str | None, kind: str) -> None:
    refuse_state(compiled(source, func, kind))


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "source",
    [
        "__device__ int f() { return blockIdx.x; } __global__ void k(int* x) { x[f()] = 1; }",
        "template <class T> __device__ int f(T) { return gridDim.x; } __global__ void k(int* x) { x[f(1)] = 1; }",
        "struct S { __device__ int f() { return blockIdx.x; } }; __global__ void k(int* x) { x[S().f()] = 1; }",
        "#define F int f() { return blockIdx.x; }\n__device__ F\n__global__ void k(int* x) { x[f()] = 1; }",
        "__global__ void k(int* x) { auto f = [] { return blockIdx.x; }; x[f()] = 1; }",
        "__global__ void k(int* x) { x[::blockIdx.x] = 1; }",
        # Brackets that conditionals double hide a function in what looks like the kernel's body.
        "__global__ void k(int* x) {\n#if FOO + 1\nif (x) {\n#else\nif (!x) {\n#endif\n}}\n"
        "__device__ int f() { return blockIdx.x; }",
    ],
)
def test_functions_that_look_at_their_block_do_not_compile(source: str) -> None:
    with pytest.raises(KernelCompileError, match="pgk_slice_"):
        compiled(source, "k")


@pytest.mark.nvrtc
def test_headers_that_look_at_their_block_do_not_compile() -> None:
    source = '#include "f.h"\n__global__ void k(int* x) { x[f()] = 1; }'
    with pytest.raises(KernelCompileError, match="pgk_slice_"):
        compiled(source, headers={"f.h": "__device__ int f() { return blockIdx.x; }"})


@pytest.mark.nvrtc
def test_errors_of_the_variant_name_the_lines_of_the_source() -> None:
    with pytest.raises(KernelCompileError) as caught:
        compiled("\n\n__global__ void k(int* x) {\n  x[blockIdx.x] = missing;\n}")
    assert caught.value.line == 4


@pytest.mark.nvrtc
@pytest.mark.parametrize("kind", ["cubin", "ptx"])
def test_variables_that_last_are_found(kind: Any) -> None:
    def keeps(source: str) -> bool:
        try:
            refuse_state(compile_image(source, name="k", arch="90a", kind=kind).image)
        except NotSliceableError:
            return True
        return False

    assert keeps('__device__ int count; extern "C" __global__ void k(int* x) { x[0] = count++; }')
    assert keeps('extern "C" __global__ void k(int* x) { static int count = 3; x[0] = count++; }')
    assert not keeps('__constant__ int t[2] = {1, 2}; extern "C" __global__ void k(int* x) { x[0] = t[x[1]]; }')
    # Tables of the mathematical functions, and texts.
    assert not keeps('extern "C" __global__ void k(double* x) { x[0] = sin(x[1]); printf("%f", x[0]); }')


@pytest.mark.nvrtc
def test_sliceable_says_at_once_why_not() -> None:
    with gp.device("cpu"):
        assert jit(PLAIN, sliceable=True) is not jit(PLAIN, sliceable=False)
        with pytest.raises(KernelCompileError, match=r"'k' cannot be .* looks at blockIdx"):
            jit("__device__ int f() { return blockIdx.x; } __global__ void k(int* x) { x[f()] = 1; }", sliceable=True)
        with pytest.raises(KernelCompileError, match="last from launch to launch"):
            jit("__device__ int n; __global__ void k(int* x) { x[blockIdx.x] = n++; }", sliceable=True)
        with pytest.raises(KernelCompileError, match="clusters"):
            jit("__global__ void __cluster_dims__(2) k(int* x) { x[0] = 1; }", sliceable=True)


def test_sliceable_is_a_bool(native: Any) -> None:
    with pytest.raises(ValueError, match="sliceable='no'"):
        jit(PLAIN, sliceable="no")  # type: ignore[arg-type]
    assert native.compiled == []


def test_nothing_is_compiled_until_it_is_needed(native: Any) -> None:
    kernel: Any = jit(PLAIN)
    assert len(native.compiled) == 1
    made = kernel.slicer()
    assert len(native.compiled) == 2
    assert [name for name, _ in made.params] == ["x", "n", "first", "grid_x", "grid_y", "grid_z"]
    assert made.source == PLAIN
    assert jit(PLAIN, sliceable=False).slicer is None  # type: ignore[attr-defined]
