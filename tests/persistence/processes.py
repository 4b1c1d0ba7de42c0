"""Child processes for tests: Python code that imports what the test imports."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start `code` with `arguments`, its standard streams on pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
