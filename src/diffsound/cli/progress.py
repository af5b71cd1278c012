"""Progress bars that vanish when nobody is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """Yield a function taking the share done, 0 to 1; shows nothing unless stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=1.0)
        yield lambda share: progress.update(task, completed=share)
