"""MkDocs hook: files of the site that live elsewhere in the repository.

The model card belongs to the bundle, the sounds of the first page to the web page's examples.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SHOWN = {"model-card.md": ROOT / "src" / "diffsound" / "assets" / "small" / "README.md"}
EXAMPLES = ROOT / "src" / "diffsound" / "serving" / "web" / "examples"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of SHOWN and the sounds of EXAMPLES."""
    for name, source in SHOWN.items():
        files.append(File.generated(config, name, content=source.read_text(encoding="utf-8")))
    for sound in sorted(EXAMPLES.glob("*.ogg")):
        name = f"{EXAMPLES.name}/{sound.name}"
        files.append(File.generated(config, name, abs_src_path=str(sound)))
    return files
