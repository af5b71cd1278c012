"""MkDocs hook: pages of the site whose text lives elsewhere in the repository.

The model card is a file of the bundle; the site shows that very file.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SHOWN = {"model-card.md": ROOT / "src" / "diffsound" / "assets" / "small" / "README.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of SHOWN."""
    for name, source in SHOWN.items():
        files.append(File.generated(config, name, content=source.read_text(encoding="utf-8")))
    return files
