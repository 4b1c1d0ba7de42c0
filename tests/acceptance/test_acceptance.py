"""The black-box cases of the contract, in both formats, restarts included."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_node import RANKNODE

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.json"))


@pytest.mark.parametrize("form", [[], ["--msgpack"]], ids=["json", "msgpack"])
def test_contract(form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node answers every case of the contract that this release covers as the contract says."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    start = f"{shlex.quote(RANKNODE)} serve --data {{data}} --port {{port}}"
    ran = subprocess.run(
        [sys.executable, HERE / "run.py", *form, "--start", start, *CASES],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = re.search(r"^(\d+) passed, 0 failed$", ran.stdout, re.MULTILINE)
    assert summary is not None, ran.stdout
    assert int(summary[1]) == 107
