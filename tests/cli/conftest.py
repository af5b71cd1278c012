"""The command line in the tests' own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_support import Here, typed


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """The command line in this process and an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        return typed(*arguments), *capsys.readouterr()

    return command
