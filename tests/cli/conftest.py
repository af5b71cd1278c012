"""The command line in the tests' own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_support import Here
from diffsound.cli.main import run


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """The command line in this process and an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            run(list(arguments))
        return int(stopped.value.code or 0), *capsys.readouterr()

    return command
