"""Bundles: written, searched, checked, imported."""

from __future__ import annotations

import importlib
import json
import lzma
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pygpukit.errors import CacheError, KernelCompileError, NvrtcNotFoundError
from pygpukit.jit.bundle import Bundle, bundle_paths, find_in_bundles, forget_bundles, import_bundle, write_bundle
from pygpukit.jit.compiler import compile_image, forget_images
from pygpukit.jit.entry import Entry, encode
from pygpukit.jit.prebuild import compile_units, export_bundle

bundle_module: Any = importlib.import_module("pygpukit.jit.bundle")


def entry(number: int, arch: str = "90a") -> Entry:
    return Entry(f"{number:064x}", f"k{number}", arch, "cubin", bytes(range(100)) * number)


GROUP = "kernels/0.xz"
ITEM: dict[str, Any] = {"key": entry(1).key, "name": "k1", "arch": "90a", "size": len(encode(entry(1)))}


def manifest(*items: dict[str, Any]) -> bytes:
    return json.dumps({"format": 2, "project": "", "groups": [items]}).encode()


def unit(number: int) -> SimpleNamespace:
    return SimpleNamespace(
        name=f"k{number}", source=f'extern "C" __global__ void k{number}(float* x) {{ *x = {number}; }}'
    )


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.zip"
    write_bundle(path, [entry(1), entry(2), entry(3, "80")])
    return path


def rewrite(path: Path, change: dict[str, bytes | None], **options: Any) -> None:
    """Write the zip file again with other members; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        members: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in (members | change).items():
            if data is not None:
                archive.writestr(name, data)


def test_round_trip(bundle: Path) -> None:
    with Bundle(bundle) as opened:
        info = opened.check()
        assert (info.arch, info.entries, info.size) == (("80", "90a"), 3, bundle.stat().st_size)
        assert opened.keys() == [entry(3, "80").key, entry(1).key, entry(2).key]
        assert opened.get(entry(2).key) == entry(2)
        assert entry(9).key not in opened
    manifest = json.loads(zipfile.ZipFile(bundle).read("manifest.json"))
    assert manifest["format"] == 2
    assert [[item["name"] for item in group] for group in manifest["groups"]] == [["k3", "k1", "k2"]]


def test_entries_are_stored_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "_GROUP_SIZE", 1000)
    entries = [entry(number) for number in range(30)]
    info = write_bundle(tmp_path / "b.zip", reversed(entries))
    with zipfile.ZipFile(info.path) as archive:
        assert 15 < len(archive.namelist()) < 30
    with Bundle(info.path) as opened:
        assert opened.check().entries == 30
        assert {key: opened.get(key) for key in reversed(opened.keys())} == {e.key: e for e in entries}


def test_the_same_entries_give_the_same_bytes(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.zip", [entry(1), entry(2)])
    write_bundle(tmp_path / "b.zip", [entry(2), entry(1), entry(1)])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_closed_bundle_says_so(bundle: Path) -> None:
    opened = Bundle(bundle)
    opened.close()
    opened.close()
    with pytest.raises(CacheError, match="closed"):
        opened.get(entry(1).key)


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_gives_a_wrong_image(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "damaged.zip"
    write_bundle(path, [entry(1), entry(2)])
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    with suppress(CacheError), Bundle(path) as opened:
        for number in (1, 2):
            if entry(number).key in opened:
                assert opened.get(entry(number).key) == entry(number)
        opened.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"manifest.json": None}, r"has no manifest\.json"),
        ({"manifest.json": b""}, "cannot be opened"),
        ({"manifest.json": b"[" * 100_000}, "nested too deeply"),
        ({"manifest.json": b"[]"}, "format 2"),
        ({"manifest.json": b'{"format": 1}'}, "format 2; export it again"),
        ({"manifest.json": b'{"format": 2}'}, "which version"),
        ({"manifest.json": b'{"format": 2, "project": ""}'}, "groups"),
        ({"manifest.json": b'{"format": 2, "project": "", "groups": 3}'}, "not as it should be"),
        ({"manifest.json": b'{"format": 2, "project": "", "groups": [3]}'}, "not as it should be"),
        ({"manifest.json": b'{"format": 2, "project": "", "groups": [["k"]]}'}, "not as it should be"),
        ({"manifest.json": manifest({})}, "not as it should be: KeyError.*key"),
        ({"manifest.json": manifest({**ITEM, "key": "../evil"})}, "no key"),
        ({"manifest.json": manifest(ITEM, ITEM)}, "listed twice"),
        ({"manifest.json": manifest({**ITEM, "size": -1})}, "the size -1"),
        ({"manifest.json": manifest({**ITEM, "size": "9"})}, "the size '9'"),
        ({"manifest.json": manifest({**ITEM, "size": 1 << 40})}, "the size"),
        ({"manifest.json": manifest({**ITEM, "arch": []})}, "not as it should be"),
        ({"manifest.json": manifest({**ITEM, "name": "k2"})}, "the manifest is wrong"),
        ({"manifest.json": manifest({**ITEM, "size": ITEM["size"] - 1})}, "has not the"),
        ({"manifest.json": manifest({**ITEM, "size": ITEM["size"] + 1})}, "has not the"),
        ({GROUP: None}, f"has no {GROUP}"),
        ({GROUP: b""}, "damaged"),
        ({GROUP: lzma.compress(encode(entry(2)))}, "has not the"),
        ({"manifest.json": manifest(ITEM), GROUP: lzma.compress(bytes(ITEM["size"]))}, "does not begin"),
        ({"manifest.json": manifest({**ITEM, "key": entry(2).key})}, "damaged: it holds key"),
        ({GROUP: lzma.compress(bytes(20_000_000))}, "has not the"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, change: dict[str, bytes | None], message: str) -> None:
    path = tmp_path / "b.zip"
    write_bundle(path, [entry(1)])
    rewrite(path, change)
    with pytest.raises(CacheError, match=message), Bundle(path) as opened:
        opened.check()


def test_a_group_larger_than_allowed_is_not_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "_MAX_GROUP", 200)
    with pytest.raises(CacheError, match=r"size .*|claims .* more than 200"):
        Bundle(bundle)


def test_other_compressions_are_refused(bundle: Path) -> None:
    rewrite(bundle, {}, compression=zipfile.ZIP_LZMA)
    with pytest.raises(CacheError, match="neither stored nor deflated"):
        Bundle(bundle)


def test_other_members_are_ignored(bundle: Path) -> None:
    rewrite(bundle, {"../../evil": b"x", "kernels/../x": b"x", "kernels/" + "A" * 64: b"x"})
    with Bundle(bundle) as opened:
        assert opened.check().entries == 3


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_bundle(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"x\.zip"):
        import_bundle(path)
    with pytest.raises(CacheError, match=r"nowhere\.zip"):
        import_bundle(tmp_path / "nowhere.zip")


def test_the_order_of_search(bundle: Path, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    write_bundle(package / "sm_90a.zip", [entry(5)])
    (package / ".hidden.zip").write_text("")
    (package / "readme.txt").write_text("")
    monkeypatch.setattr(bundle_module, "_PACKAGE_BUNDLES", package)
    folder = tmp_path / "folder"
    write_bundle(folder / "one.zip", [entry(6)])
    monkeypatch.setenv("PYGPUKIT_BUNDLE", os.pathsep.join([str(bundle), str(folder)]))
    imported = import_bundle(bundle).path
    assert imported.parent == cache_dir / "bundles"
    assert bundle_paths() == [bundle, folder / "one.zip", imported, package / "sm_90a.zip"]
    assert [find_in_bundles(entry(n).key) for n in (1, 5, 6, 7)] == [entry(1), entry(5), entry(6), None]


def test_importing_twice_is_one_file(bundle: Path, cache_dir: Path) -> None:
    first, second = import_bundle(bundle), import_bundle(bundle)
    assert first == second
    assert [path.name for path in (cache_dir / "bundles").iterdir()] == [first.path.name]
    assert find_in_bundles(entry(1).key) == entry(1)


def test_a_damaged_bundle_is_passed_over_with_a_warning(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "good.zip"
    write_bundle(good, [entry(1)])
    rewrite(bundle, {GROUP: b"x"})
    bad = tmp_path / "bad.zip"
    bad.write_text("no zip file")
    monkeypatch.setenv("PYGPUKIT_BUNDLE", os.pathsep.join(map(str, [bad, bundle, good])))
    with pytest.warns(RuntimeWarning) as caught:
        assert find_in_bundles(entry(1).key) == entry(1)
    assert ["bad.zip" in str(item.message) for item in caught] == [True, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_reads_on_its_own(bundle: Path) -> None:
    with Bundle(bundle) as opened:
        opened.get(entry(1).key)
        child = os.fork()
        if child == 0:
            same = all(opened.get(entry(n).key) == entry(n) for _ in range(50) for n in (1, 2))
            os._exit(0 if same else 1)
        for _ in range(50):
            assert opened.get(entry(2).key) == entry(2)
        assert os.waitpid(child, 0)[1] == 0


def test_built_in_kernels_run_from_a_bundle_without_nvrtc(
    native: Any, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"pygpukit/a.cuh": "int a;\n", "pygpukit/unused.cuh": ""}
    source = f'#include "pygpukit/a.cuh"\n{unit(1).source}'
    units = [SimpleNamespace(name="k1", source=source), unit(2)]
    info = export_bundle(tmp_path / "out" / "b.zip", units, ["80", "90a"], headers=headers, jobs=1)
    assert (info.entries, info.arch) == (4, ("80", "90a"))
    native.missing = True
    monkeypatch.setattr(importlib.import_module("pygpukit.jit.nvrtc"), "_opened", None)
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(tmp_path / "another machine"))
    monkeypatch.setenv("PYGPUKIT_BUNDLE", str(info.path))
    forget_images()
    forget_bundles()
    image = compile_image(source, name="any name", arch="90a", headers=headers)
    assert (image.cached, image.image) == ("bundle", f"cubin:{source}".encode())
    with pytest.raises(NvrtcNotFoundError):
        compile_image(source, name="k1", arch="89", headers=headers)
    with pytest.raises(NvrtcNotFoundError):
        compile_image(source, name="k1", arch="90a", headers=headers, options=["--use_fast_math"])


def test_a_unit_that_does_not_compile_stops_the_export(native: Any, tmp_path: Path) -> None:
    with pytest.raises(KernelCompileError):
        export_bundle(tmp_path / "b.zip", [SimpleNamespace(name="bad", source="syntax error")], ["80"], jobs=1)
    assert not (tmp_path / "b.zip").exists()
    with pytest.raises(TypeError, match=r"arch=\['80'\]"):
        compile_units([], "80")


def test_a_bundle_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot write bundle"):
        write_bundle(tmp_path / "file" / "b.zip", [entry(1)])


@pytest.mark.nvrtc
@pytest.mark.slow
def test_a_pool_of_processes_compiles_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = [unit(number) for number in range(4)]
    one = export_bundle(tmp_path / "one.zip", units, ["80", "90a"], jobs=1)
    monkeypatch.setenv("PYGPUKIT_CACHE_DIR", str(tmp_path / "other cache"))
    many = export_bundle(tmp_path / "many.zip", units, ["80", "90a"], jobs=2)
    assert (one.entries, many.entries) == (8, 8)
    assert one.path.read_bytes() == many.path.read_bytes()
    with Bundle(many.path) as opened:
        opened.check()


@pytest.mark.nvrtc
@pytest.mark.slow
def test_an_error_in_a_pool_names_the_kernel(tmp_path: Path) -> None:
    units = [unit(1), SimpleNamespace(name="bad", source="__global__ void bad() { undefined; }")]
    with pytest.raises(KernelCompileError, match="'bad' does not compile") as caught:
        compile_units(units, ["80"], jobs=2)
    assert caught.value.line == 1
