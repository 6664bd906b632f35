"""The way from source to image, and what is asked of NVRTC."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import pytest

from pygpukit.errors import DeviceError, KernelCompileError, NvrtcNotFoundError
from pygpukit.jit.cache import open_cache
from pygpukit.jit.compiler import arch_for, compile_image, forget_images, macro_texts
from pygpukit.jit.headers import builtin_headers, used_headers
from pygpukit.jit.nvrtc import expected_version, get_nvrtc_path, get_nvrtc_version, is_nvrtc_available, open_nvrtc

nvrtc: Any = importlib.import_module("pygpukit.jit.nvrtc")

SOURCE = 'extern "C" __global__ void k(float* x) { *x = 1; }'


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((8, 0), "80"), ((8, 6), "86"), ((8, 9), "89"), ((9, 0), "90a"), ((10, 0), "100a"), ((12, 0), "120a")],
)
def test_arch_of_a_device(capability: tuple[int, int], arch: str) -> None:
    assert arch_for(capability) == arch


def test_an_old_device_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"7\.5 is not supported: .* 8\.0 or newer"):
        arch_for((7, 5))


def test_memory_then_disk_then_compiler(native: Any, cache_dir: Path) -> None:
    first = compile_image(SOURCE, name="k", arch="90a")
    second = compile_image(SOURCE, name="k", arch="90a")
    forget_images()
    third = compile_image(SOURCE, name="k", arch="90a")
    assert [image.cached for image in (first, second, third)] == [None, "memory", "disk"]
    assert first.image == second.image == third.image == f"cubin:{SOURCE}".encode()
    assert len(native.compiled) == 1
    assert len(list(cache_dir.iterdir())) == 1


def test_every_input_is_its_own_image(native: Any) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"arch": "80"},
        {"options": ["--use_fast_math"]},
        {"defines": {"A": 1}},
        {"defines": {"A": 2}},
        {"expressions": ["k"]},
        {"kind": "ptx"},
    ]
    for variant in variants:
        compile_image(SOURCE, **{"name": "k", "arch": "90a", **variant})
    assert len(native.compiled) == len(variants)


def test_another_compiler_is_another_image(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_image(SOURCE, name="k", arch="90a")
    forget_images()
    monkeypatch.setattr(nvrtc, "_opened", None)
    native.version = (13, 5)
    assert compile_image(SOURCE, name="k", arch="90a").cached is None


def test_a_copy_of_another_version_that_is_already_loaded_has_its_own_images(
    native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler: Any = importlib.import_module("pygpukit.jit.compiler")
    # The files say 13.9; what opens is 13.4.
    monkeypatch.setattr(compiler, "expected_version", lambda: (13, 9))
    origins = []
    for _ in range(2):
        forget_images()
        origins.append(compile_image(SOURCE, name="k", arch="90a").cached)
    assert origins == [None, "disk"]
    assert len(native.compiled) == 1


def test_a_damaged_image_is_compiled_again(native: Any, cache_dir: Path) -> None:
    compile_image(SOURCE, name="k", arch="90a")
    [path] = cache_dir.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    forget_images()
    assert compile_image(SOURCE, name="k", arch="90a").cached is None
    forget_images()
    assert compile_image(SOURCE, name="k", arch="90a").cached == "disk"


def test_without_the_disk_cache_memory_remains(native: Any, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGPUKIT_CACHE", "0")
    assert [compile_image(SOURCE, name="k", arch="90a").cached for _ in range(2)] == [None, "memory"]
    assert not cache_dir.exists()


@pytest.mark.filterwarnings("ignore:cannot .* the kernel cache")
def test_an_unusable_cache_folder_does_not_stop_a_compile(
    native: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(tmp_path / "file"))
    assert compile_image(SOURCE, name="k", arch="90a").cached is None


def test_options(native: Any) -> None:
    compile_image(SOURCE, name="ns::k<float, 3>", arch="90a", options=["-lineinfo"], defines={"T": "float"})
    call = native.compiled[-1]
    assert call["options"] == [
        "--gpu-architecture=sm_90a",
        "-default-device",
        "--std=c++17",
        "--fmad=true",
        "-lineinfo",
    ]
    assert call["source"] == f"#define T float\n#line 1\n{SOURCE}"
    assert call["name"] == "ns_k_float_3_.cu"
    compile_image(SOURCE, name="k", arch="80", options=["-std=c++20", "--fmad=false"], kind="ptx")
    call = native.compiled[-1]
    assert call["options"] == [
        "--gpu-architecture=compute_80",
        "-default-device",
        "--generate-line-info",
        "-std=c++20",
        "--fmad=false",
    ]


@pytest.mark.parametrize("option", ["-arch=sm_80", "--gpu-architecture=sm_80", "-arch"])
def test_the_architecture_is_not_an_option(native: Any, option: str) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        compile_image(SOURCE, name="k", arch="90a", options=[option])


def test_wrong_arguments_are_named(native: Any) -> None:
    with pytest.raises(TypeError, match=r"options=\['-G'\]"):
        compile_image(SOURCE, name="k", arch="90a", options="-G")
    for arch in ("sm_90", "9", "90b", "90 --x", ""):
        with pytest.raises(ValueError, match="not an architecture"):
            compile_image(SOURCE, name="k", arch=arch)
    with pytest.raises(ValueError, match="not a macro's name"):
        compile_image(SOURCE, name="k", arch="90a", defines={"A B": 1})
    with pytest.raises(ValueError, match="one line"):
        compile_image(SOURCE, name="k", arch="90a", defines={"A": "1\n#error"})
    with pytest.raises(ValueError, match="'cubin' or 'ptx'"):
        compile_image(SOURCE, name="k", arch="90a", kind="elf")  # type: ignore[arg-type]


def test_macros_as_text() -> None:
    assert macro_texts(None) == {}
    assert macro_texts({"N": 4, "B": False, "A": None, "T": "unsigned char"}) == {
        "A": "",
        "B": "0",
        "N": "4",
        "T": "unsigned char",
    }


def test_only_included_headers_count(native: Any) -> None:
    headers = {"a.h": '#include "b.h"\n', "b.h": " # include <a.h>\n", "c.h": ""}
    source = f'#include "a.h"\n{SOURCE}'
    compile_image(source, name="k", arch="90a", headers=headers)
    assert set(native.compiled[-1]["headers"]) == {"a.h", "b.h"}
    assert compile_image(source, name="k", arch="90a", headers=headers | {"c.h": "other"}).cached == "memory"
    assert compile_image(source, name="k", arch="90a", headers=headers | {"b.h": "other"}).cached is None


def test_an_include_by_macro_makes_all_headers_count() -> None:
    headers = {"a.h": "", "b.h": ""}
    assert used_headers("#define H <a.h>\n#include H\n", headers) == headers
    assert used_headers("int x; // #include <c.h>\n", headers) == {}


def test_header_folders_keep_an_image_out_of_the_disk_cache(native: Any, cache_dir: Path, tmp_path: Path) -> None:
    source = f"#include <cstdint>\n{SOURCE}"
    folder = tmp_path / "include"
    folder.mkdir()
    compile_image(source, name="k", arch="90a", options=[f"-I{folder}"])
    assert set(native.compiled[-1]["headers"]) == {"cstdint", "stdint.h"}
    # Real ones come with others of the same library.
    (folder / "stdint.h").write_text("")
    forget_images()
    compile_image(source, name="k", arch="90a", options=["-I", str(folder)])
    assert native.compiled[-1]["headers"] == {}
    assert not list(cache_dir.glob("*.kernel"))
    compile_image(source, name="k", arch="90a")
    assert "cstdint" in native.compiled[-1]["headers"]


def test_options_from_nvrtcs_own_variables_keep_it_out_too(
    native: Any, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVRTC_APPEND_FLAGS", "-G")
    compile_image(SOURCE, name="k", arch="90a")
    assert not cache_dir.exists()


def test_errors_show_the_users_line_and_are_not_cached(native: Any, cache_dir: Path) -> None:
    for _ in range(2):
        with pytest.raises(KernelCompileError, match="syntax error") as caught:
            compile_image("// one\nsyntax error\n", name="k", arch="90a")
    assert caught.value.line == 2
    assert caught.value.__cause__ is None
    assert len(native.compiled) == 2
    assert list(cache_dir.iterdir()) == []


def test_threads_compile_an_image_once(native: Any) -> None:
    barrier = threading.Barrier(8)
    found: list[bytes] = []

    def work() -> None:
        barrier.wait()
        found.append(compile_image(SOURCE, name="k", arch="90a").image)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(native.compiled) == 1


def test_memory_is_bounded(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler: Any = importlib.import_module("pygpukit.jit.compiler")
    monkeypatch.setattr(compiler, "_MAX_IMAGES", 3)
    for number in range(5):
        compile_image(f"{SOURCE} // {number}", name="k", arch="90a")
    assert len(compiler._images) == 3


def test_without_nvrtc(native: Any, cache_dir: Path) -> None:
    native.missing = True
    assert not is_nvrtc_available()
    assert get_nvrtc_version() is None
    assert get_nvrtc_path() is None
    with pytest.raises(NvrtcNotFoundError, match="NVRTC JIT compiler not available"):
        compile_image(SOURCE, name="k", arch="90a")
    native.missing = False
    # Installed meanwhile: nothing remembers the failure.
    assert get_nvrtc_version() == (13, 4)


def test_nvrtc_is_opened_once_with_the_drivers_major(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def candidates(major: int | None) -> list[str]:
        asked.append(major)
        return ["libnvrtc.so"]

    monkeypatch.setattr(nvrtc, "nvrtc_candidates", candidates)
    native.driver = 12080
    threads = [threading.Thread(target=open_nvrtc) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert native.opened == 1
    assert asked == [12]


def test_a_wheel_of_another_major_is_explained(native: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newer = tmp_path / "libnvrtc.so.13"
    newer.write_text("")
    monkeypatch.setattr(nvrtc, "nvrtc_candidates", lambda major: ["x.12"] if major == 12 else [str(newer), "x.12"])
    native.driver, native.missing = 12080, True
    with pytest.raises(NvrtcNotFoundError, match=r"does not run on this driver \(CUDA 12\.x\).*pygpukit\[cuda12\]"):
        open_nvrtc()


def test_the_version_is_told_from_file_names(native: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(nvrtc, "_native", native)
    monkeypatch.setattr(nvrtc, "_opened", None)
    library = tmp_path / "libnvrtc.so.13"
    library.write_text("")
    monkeypatch.setattr(nvrtc, "nvrtc_candidates", lambda major: ["/nowhere/libnvrtc.so.13", str(library)])
    (tmp_path / "libnvrtc-builtins.so.13.2").write_text("")
    (tmp_path / "libnvrtc-builtins.so.13.2.88").write_text("")
    assert expected_version() == (13, 2)
    assert native.opened == 0
    # Two versions in one folder: only opening tells.
    (tmp_path / "libnvrtc-builtins.so.12.9").write_text("")
    assert expected_version() == (13, 4)
    assert native.opened == 1


@pytest.mark.nvrtc
def test_real_compiles() -> None:
    assert expected_version() == open_nvrtc().version
    for arch in ("80", "89", "90a", "100a", "120a"):
        image = compile_image(SOURCE, name="k", arch=arch)
        assert image.image.startswith(b"\x7fELF")
    text = compile_image(SOURCE, name="k", arch="80", kind="ptx").image
    assert b".entry k(" in text
    assert text.endswith(b"\0")


@pytest.mark.nvrtc
def test_real_lowered_names_come_back_from_the_disk() -> None:
    source = "namespace a { template <class T> __global__ void k(T* x) { *x = 1; } }"
    first = compile_image(source, name="k", arch="90a", expressions=["a::k<float>"])
    forget_images()
    second = compile_image(source, name="k", arch="90a", expressions=["a::k<float>"])
    assert (first.cached, second.cached) == (None, "disk")
    assert dict(first.lowered) == dict(second.lowered) == {"a::k<float>": "_ZN1a1kIfEEvPT_"}
    assert first.image == second.image


@pytest.mark.nvrtc
def test_a_real_error_has_the_line_and_a_caret() -> None:
    with pytest.raises(KernelCompileError) as caught:
        compile_image("__global__ void k(T* x) {\n  *x = undefined;\n}", name="k", arch="90a", defines={"T": "int"})
    assert caught.value.line == 2
    assert "> 2 |   *x = undefined;\n    |        ^\n" in str(caught.value)


@pytest.mark.nvrtc
def test_the_integer_headers_compile() -> None:
    source = """
    #include <cstdint>
    #include <stdint.h>
    static_assert(sizeof(int8_t) == 1 && sizeof(uint16_t) == 2 && sizeof(std::int32_t) == 4, "");
    static_assert(sizeof(std::uint64_t) == 8 && sizeof(uintptr_t) == 8 && int8_t(-1) < 0, "");
    extern "C" __global__ void k(int64_t* x) { *x = 1; }
    """
    assert compile_image(source, name="k", arch="80").image


def test_builtin_headers_are_read_only() -> None:
    headers: Any = builtin_headers()
    with pytest.raises(TypeError):
        headers["cstdint"] = ""
    cache = open_cache()
    assert cache is not None
