"""What the structure tests read: the project's own files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project_files(repository: Path) -> list[Path]:
    """Every file under version control, and the new ones that will be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    return sorted(path for name in listed.stdout.split("\0") if name and (path := repository / name).is_file())
