"""Programs of the tests, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def script(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> list[str]:
    """The words of the next line; none at the end."""
    assert process.stdout
    return process.stdout.readline().split()
