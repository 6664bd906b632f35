"""`jit` and `load_ptx`: what is compiled, what is loaded, what is remembered."""

from __future__ import annotations

import importlib
import re
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pygpukit.errors import DeviceError, KernelCompileError, NvrtcNotFoundError
from pygpukit.jit import jit, load_ptx, warmup
from pygpukit.jit.compiler import compile_image
from pygpukit.jit.ptx import ptx_entry
from pygpukit.jit.signature import find_signature

kernel_module: Any = importlib.import_module("pygpukit.jit.kernel")

SCALE = 'extern "C" __global__ void scale(float* x, float factor, int n) { x[0] *= factor; }'
PTX = """
.version 9.0
.target sm_80
.address_size 64
// .entry comment(.param .u32 x)
.visible .entry scale(
    .param .u64 .ptr .align 1 scale_param_0,
    .param .f32 scale_param_1,
    .param .u32 scale_param_2,
    .param .align 16 .b8 scale_param_3[16],
    .param .u8 scale_param_4,
    .param .f64 scale_param_5,
    .param .u64 scale_param_6,
    .param .u64 scale_param_7
)
{
    ld.param.u64 %rd1, [scale_param_6];
    ld.param.u64 %rd2, [scale_param_7];
    cvta.to.global.u64 %rd3, %rd1;
    ret;
}
.entry empty() { ret; }
.entry bare { ret; }
"""


def test_a_kernel_is_compiled_for_the_device_and_loaded(native: Any) -> None:
    kernel: Any = jit(SCALE, func="scale")
    assert native.compiled[0]["options"][0] == "--gpu-architecture=sm_90a"
    assert (kernel.name, kernel.entry) == ("scale", "scale")
    assert kernel.params == [("x", "*f32"), ("factor", "f32"), ("n", "i32")]
    assert (kernel.arch, kernel.source) == ("90a", SCALE)
    assert native.compiled[0]["expressions"] == []


def test_the_same_source_is_the_same_object(native: Any) -> None:
    kernel = jit(SCALE)
    assert jit(SCALE) is kernel
    assert jit(SCALE, options=[]) is kernel
    others = [
        jit(SCALE, options=["-G"]),
        jit(SCALE, defines={"A": 1}),
        jit(SCALE, headers={"a.h": ""}),
        jit(SCALE, "scale"),
    ]
    assert all(other is not kernel for other in others)
    native.device = SimpleNamespace(kind="cuda", index=1, _number=1, capability=(9, 0))
    assert jit(SCALE) is not kernel
    # The second device has the same architecture: one compile for both.
    assert len([call for call in native.compiled if call["options"][-1] == "--fmad=true"]) == 2


def test_threads_get_the_same_object(native: Any) -> None:
    barrier = threading.Barrier(6)
    found: list[Any] = []

    def work() -> None:
        barrier.wait()
        found.append(jit(SCALE))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(kernel) for kernel in found}) == 1


def test_remembered_kernels_are_bounded(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module, "_MAX_KERNELS", 3)
    for number in range(6):
        jit(f"{SCALE} // {number}")
    assert len(kernel_module._kernels) == 3


def test_templates_and_plain_kernels_are_loaded_by_their_lowered_name(native: Any) -> None:
    kernel: Any = jit("namespace a { template <class T> __global__ void k(T* x); }", "k<double>")
    assert native.compiled[-1]["expressions"] == ["a::k<double>"]
    assert (kernel.entry, kernel.name, kernel.params) == ("_Z12a::k<double>", "a::k<double>", [("x", "*f64")])


def test_macros_reach_the_signature(native: Any) -> None:
    source = "__global__ void k(T* x, U y);"
    kernel: Any = jit(source, defines={"T": "int"}, options=["-DU=double"])
    assert kernel.params == [("x", "*i32"), ("y", "f64")]


def test_headers_reach_the_signature(native: Any) -> None:
    kernel: Any = jit('#include "t.h"\n__global__ void k(real* x);', headers={"t.h": "using real = double;"})
    assert kernel.params == [("x", "*f64")]


def test_the_cpu_device_gets_ptx(native: Any) -> None:
    native.device = SimpleNamespace(kind="cpu", index=0, _number=7, capability=(8, 0))
    jit(SCALE)
    assert native.compiled[-1]["options"][0] == "--gpu-architecture=compute_80"
    assert native.compiled[-1]["kind"] == "ptx"
    native.missing = True


def test_checks_are_a_kernel_of_their_own(native: Any) -> None:
    native.device = SimpleNamespace(kind="cpu", index=0, _number=7, capability=(8, 0))
    plain, checked, fuzzed, other = (
        jit(SCALE),
        jit(SCALE, check=True),
        jit(SCALE, check="fuzz"),
        jit(SCALE, check="fuzz", seed=7),
    )
    assert len({id(k) for k in (plain, checked, fuzzed, other)}) == 4
    assert jit(SCALE, check="fuzz", seed=0) is fuzzed
    assert [(k["check"], k["seed"]) for k in native.loaded] == [(False, None), (True, None), (True, 0), (True, 7)]
    assert len(native.compiled) == 1


def test_without_nvrtc_the_error_says_so(native: Any) -> None:
    native.missing = True
    with pytest.raises(NvrtcNotFoundError):
        jit(SCALE)
    warmup()


def test_wrong_arguments(native: Any) -> None:
    for check in (True, "fuzz"):
        with pytest.raises(DeviceError, match=r"runs on the CPU device: use `with gp.device\('cpu'\)"):
            jit(SCALE, check=check)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="check='races' is not valid: use True, False or 'fuzz'"):
        jit(SCALE, check="races")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed=3 is for check='fuzz'"):
        jit(SCALE, seed=3)
    with pytest.raises(ValueError, match="seed=-1 is not valid"):
        jit(SCALE, check="fuzz", seed=-1)
    with pytest.raises(TypeError, match="src must be CUDA C"):
        jit(SCALE.encode())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"options=\['-G'\]"):
        jit(SCALE, options="-G")
    with pytest.raises(KernelCompileError, match="did you mean 'scale'"):
        jit(SCALE, "scal")
    with pytest.raises(KernelCompileError, match="does not compile"):
        jit(SCALE + "\nsyntax error")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"options": [1]}, "options must be texts, not 1 of type int"),
        ({"options": ["-G", None]}, "options must be texts, not None"),
        ({"defines": {1: "x"}}, "the names in defines must be texts, not 1 of type int"),
        ({"defines": {"A": 1, 2: 3}}, "the names in defines must be texts, not 2"),
        ({"headers": {1: ""}}, "the names in headers must be texts, not 1"),
        ({"headers": {"a.h": b""}}, "the contents of headers must be texts, not b'' of type bytes"),
    ],
)
def test_what_is_no_text_is_named(native: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        jit(SCALE, **arguments)
    assert native.compiled == []


def test_warmup_compiles_past_the_caches(native: Any, cache_dir: Path) -> None:
    warmup()
    warmup()
    assert len(native.compiled) == 2
    assert not cache_dir.exists()


def test_ptx_from_text_and_file(native: Any, tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(PTX)
    kernel: Any = load_ptx(PTX, "scale")
    assert kernel.params == [
        ("arg0", "*void"),
        ("arg1", "f32"),
        ("arg2", "i32"),
        ("arg3", "struct"),
        ("arg4", "u8"),
        ("arg5", "f64"),
        ("arg6", "*void"),
        ("arg7", "i64"),
    ]
    assert kernel.image == PTX.encode() + b"\0"
    assert load_ptx(path, "scale") is kernel
    assert load_ptx(str(path), "scale") is kernel
    empty: Any = load_ptx(PTX, "empty")
    bare: Any = load_ptx(PTX, "bare")
    assert empty.params == bare.params == []
    assert native.compiled == []


def test_ptx_errors(native: Any, tmp_path: Path) -> None:
    with pytest.raises(KernelCompileError, match="entries scale, empty, bare; say which"):
        load_ptx(PTX)
    with pytest.raises(KernelCompileError, match="did you mean 'scale'"):
        load_ptx(PTX, "scal")
    with pytest.raises(KernelCompileError, match=r"no \.entry"):
        load_ptx("// nothing\n", "k")
    with pytest.raises(KernelCompileError, match="cannot read PTX parameter 0"):
        load_ptx(".entry k(.param .u128 x)\n")
    with pytest.raises(FileNotFoundError):
        load_ptx(tmp_path / "none.ptx")
    (tmp_path / "x.cubin").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(KernelCompileError, match="not a cubin"):
        load_ptx(tmp_path / "x.cubin")


def test_what_is_text_and_what_is_a_path(native: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A text may be cut anywhere in its first line, or be empty.
    for text in ("// Generated by", "//", "/*", "  // x", ".v", ".vers", ".version 8.0", ".entry", "x\n", "x\0y"):
        with pytest.raises(KernelCompileError, match=r"the PTX text has no \.entry function"):
            load_ptx(text)
    for text in ("", " ", "\n", "\0", "\t\n"):
        with pytest.raises(KernelCompileError, match="the PTX text is empty: load_ptx takes PTX text, or the path of"):
            load_ptx(text)
    kernel = load_ptx(".entry k()")
    monkeypatch.chdir(tmp_path)
    hidden = tmp_path / ".kernels"
    hidden.mkdir()
    for path in (".kernels/k.ptx", "./.kernels/k.ptx", f"../{tmp_path.name}/.kernels/k.ptx", ".kernels/.k"):
        (tmp_path / path).write_text(".entry k()")
        assert load_ptx(path) is kernel
        assert load_ptx(Path(path)) is kernel
    with pytest.raises(FileNotFoundError, match=r"and no PTX text either, .* such as \.version: 'version 8\.0'"):
        load_ptx("version 8.0")
    with pytest.raises(OSError, match=r"no PTX text either.*x\.\.\.'$"):
        load_ptx("x" * 100_000)
    for path in (".", "/"):
        with pytest.raises(OSError, match="and no PTX text either"):
            load_ptx(path)
    with pytest.raises(FileNotFoundError):
        load_ptx(Path(".version 8.0"))
    (tmp_path / "empty.ptx").write_text("")
    with pytest.raises(KernelCompileError, match=r"empty\.ptx is empty"):
        load_ptx("empty.ptx")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text", [".entry ", ".entry k(", "/*", ".entry k(.param ", ".entry k(.param .u64 x,", "[.entry k("]
)
@pytest.mark.parametrize("ending", ["", ")", " x)"])
def test_hostile_ptx_ends(text: str, ending: str) -> None:
    for source in (text * 30_000 + ending, ".entry k(" + text.removeprefix(".entry k(") * 30_000 + ending):
        with suppress(KernelCompileError):
            ptx_entry(source, "k")


@pytest.mark.nvrtc
def test_a_real_kernel_on_the_cpu_device() -> None:
    kernel = jit(SCALE)
    assert kernel is jit(SCALE)
    assert kernel.params == [("x", "float*"), ("factor", "float"), ("n", "int")]
    assert (kernel.name, kernel.arch, kernel.source) == ("scale", "80", SCALE)
    assert kernel.cubin is None
    assert kernel.ptx is not None
    assert ".entry scale(" in kernel.ptx
    again = load_ptx(kernel.ptx, "scale")
    assert [kind for _, kind in again.params] == ["void*", "float", "int"]
    warmup()


TYPES = [
    *["float", "double", "bool", "char", "signed char", "unsigned char", "short", "unsigned short int", "int"],
    *["unsigned", "long", "unsigned long", "long long", "long long unsigned", "size_t", "int64_t", "std::uint8_t"],
    *[
        "float*",
        "const double* __restrict__",
        "int**",
        "void*",
        "Pair*",
        "Pair",
        "float4",
        "Alias",
        "const Pointer",
        "T",
    ],
]
WIDTHS = {"b1": 8}


@pytest.mark.nvrtc
@given(st.lists(st.sampled_from(TYPES), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_codes_have_the_sizes_the_compiler_gives(types: list[str]) -> None:
    params = ", ".join(f"{kind} p{i}" for i, kind in enumerate(types))
    source = (
        "#include <cstdint>\nstruct Pair { int a; int b; };\ntypedef unsigned short Alias;\nusing Pointer = Alias*;\n"
        f'template <class T> struct Unused {{}};\nextern "C" __global__ void k({params}) {{}}'
    )
    defines = {"T": "short"} if "T" in types else {}
    source = source.replace("class T", "class V")
    signature = find_signature(source, "k", defines)
    text = compile_image(source, name="k", arch="80", kind="ptx", defines=defines).image.decode().rstrip("\0")
    found = re.findall(
        r"\.param(?:\s+\.align\s+\d+)?\s+\.[a-z]+(\d+)(?:\s+\.ptr\s+\.align\s+\d+)?\s+\w+(\[\d+\])?", text
    )
    assert len(found) == len(signature.params)
    for param, (bits, array) in zip(signature.params, found, strict=True):
        if param.code == "struct":
            assert array
        else:
            assert not array
            width = 64 if "*" in param.code else WIDTHS.get(param.code) or int(param.code[1:])
            assert width == int(bits), param


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("source", "func"),
    [
        (SCALE, "scale"),
        ("namespace { __global__ void k(int n) {} }", "k"),
        ("namespace a { inline namespace b { __global__ void k(int n) {} } }", "a::b::k"),
        ("template <class T, int N = 2> __global__ void k(T* x) { *x = N; }", "k<unsigned char>"),
        ("template <class T = float> __global__ void k(T* x) { *x = 1; }", None),
        ("#define K(name, T) __global__ void name##_k(T* x) { *x = 1; }\nK(k, float)", "k_k"),
        ('#define K(name, T) extern "C" __global__ void name(T* x) { *x = 1; }\nK(k, float)', "k"),
        ('namespace a { extern "C" { __global__ void k(float* x) { *x = 1; } } }', "k"),
    ],
)
def test_names_found_here_are_names_nvrtc_knows(source: str, func: str | None) -> None:
    signature = find_signature(source, func)
    expressions = [] if signature.extern_c else [signature.name]
    image = compile_image(source, name="k", arch="80", kind="ptx", expressions=expressions)
    entry = signature.name if signature.extern_c else image.lowered[signature.name]
    assert ptx_entry(image.image.decode().rstrip("\0"), entry)[0] == entry
