"""Install an sdist or a wheel into a new environment outside of the tree and run the smoke test there.

    python tests/dist/check.py dist/pygpukit-0.3.0.tar.gz dist/pygpukit-0.3.0-cp311-abi3-linux_x86_64.whl

A wheel is installed with no Rust on the path. An sdist is built by pip, as a user's pip would.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

SMOKE = Path(__file__).with_name("smoke.py")
NEEDED = (
    "Cargo.lock", "Cargo.toml", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "rust/fake-cuda/Cargo.toml",
    "rust/pygpukit-core/Cargo.toml", "rust/pygpukit-core/src/lib.rs", "rust/pygpukit-python/Cargo.toml",
    "rust/pygpukit-python/src/lib.rs", "src/pygpukit/__init__.py", "src/pygpukit/_pygpukit_rust.pyi",
    "src/pygpukit/py.typed", "src/_pygpukit_rust/__init__.py",
)  # fmt: skip
"""What an sdist must hold beside the sources that are compared with the tree."""


def missing_from(sdist: Path, tree: Path) -> list[str]:
    """Return the files an sdist lacks: those it always needs, and every package, kernel and crate source of the tree."""
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    listed = subprocess.run(["git", "ls-files", "src", "rust"], cwd=tree, capture_output=True, text=True, check=False)
    sources = [name for name in listed.stdout.split() if not name.startswith(("rust/fake-cuda/tests",))]
    return sorted({*NEEDED, *sources} - held)


def without_rust(path: str) -> str:
    """Return a search path on which there is neither cargo nor rustc."""
    folders = path.split(os.pathsep)
    return os.pathsep.join(f for f in folders if not any((Path(f) / tool).exists() for tool in ("cargo", "rustc")))


def check(file: Path, tree: Path) -> None:
    """Install one file into a new environment and run the smoke test in an empty directory."""
    is_wheel = file.suffix == ".whl"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYGPUKIT_", "VIRTUAL_ENV"))}
    environment.pop("PYO3_PYTHON", None)
    if is_wheel:
        environment["PATH"] = without_rust(environment["PATH"])
        assert shutil.which("cargo", path=environment["PATH"]) is None
    else:
        lacking = missing_from(file, tree)
        if lacking:
            raise SystemExit(f"{file.name} lacks {', '.join(lacking)}")
        # Dependencies are compiled once for the tree's own build and this one.
        environment.setdefault("CARGO_TARGET_DIR", str(tree / "target"))
    with tempfile.TemporaryDirectory(prefix="pygpukit-dist-") as folder:
        root = Path(folder)
        venv.create(root / "env", with_pip=True)
        python = root / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        empty = root / "empty"
        empty.mkdir()
        print(f"--- {file.name}", flush=True)
        install = [python, "-m", "pip", "install", "--quiet", "--retries", "10", file.resolve()]
        subprocess.run(install, cwd=root, env=environment, check=True)
        subprocess.run([python, "-I", SMOKE.resolve()], cwd=empty, env=environment, check=True)


def main() -> int:
    """Check every file that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="sdists and wheels")
    args = parser.parse_args()
    for file in args.files:
        try:
            check(file, Path(__file__).resolve().parents[2])
        except subprocess.CalledProcessError as error:
            print(f"{file.name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
