"""Build the documentation site: `make docs`, or

    python tools/build_site.py [--out site]

Zensical reads one folder. What lives elsewhere in the repository is copied beside the pages first:
the model card, and the sounds of the web page's examples. The listening page is written from the
galleries, one for each model version.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "diffsound"
MODEL_CARD = PACKAGE / "assets" / "small" / "README.md"
EXAMPLES = PACKAGE / "serving" / "web" / "examples"

LISTENING = """# Listen

{count} prompts, each made by {models}. Nothing is picked: every prompt has the seed of its place in
the list, and the bad ones are included. The heading of a column leads to its gallery, with
spectrograms and how well the model knows each prompt.

"""


class Gallery(NamedTuple):
    """What tools/gallery.py wrote. folder: in the site, "" or "NAME/". clips: prompt to file."""

    name: str
    folder: str
    clips: dict[str, str]


def galleries(docs: Path) -> list[Gallery]:
    """The current model's gallery, then those in versions/NAME/, newest name first."""
    versions = sorted(docs.glob("versions/*/gallery.md"), reverse=True)
    return [
        Gallery("this version", "", _clips(docs / "gallery.md")),
        *(Gallery(p.parent.name, f"versions/{p.parent.name}/", _clips(p)) for p in versions),
    ]


def _clips(page: Path) -> dict[str, str]:
    entry = r'^## \d+\. ([^\n]+)$.*?<audio [^>]*src="([^"]+)"'
    return dict(re.findall(entry, page.read_text(encoding="utf-8"), flags=re.M | re.S))


def listening_page(shown: list[Gallery]) -> str:
    """A table with a row for each prompt and a column of players for each model version."""
    prompts = dict.fromkeys(prompt for gallery in shown for prompt in gallery.clips)
    links = [f"[{gallery.name}]({gallery.folder}gallery.md)" for gallery in shown]
    models = "the bundled model" if len(shown) == 1 else f"{len(shown)} versions of the model"
    rows = [["prompt", *links], ["---"] * (len(shown) + 1)]
    rows += [[prompt, *(_player(gallery, prompt) for gallery in shown)] for prompt in prompts]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return LISTENING.format(count=len(prompts), models=models) + table + "\n"


def _player(gallery: Gallery, prompt: str) -> str:
    if prompt not in gallery.clips:
        return ""
    source = gallery.folder + gallery.clips[prompt]
    return f'<audio controls preload="none" src="{source}"></audio>'


def build(out: Path) -> None:
    """Check every link and write the site; any warning ends it with an exception."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        docs = root / "docs"
        shutil.copytree(ROOT / "docs", docs)
        shutil.copy(MODEL_CARD, docs / "model-card.md")
        shutil.copytree(EXAMPLES, docs / "examples")
        # Galleries name their sounds as from the built page, Zensical reads addresses in HTML as
        # from the source.
        for gallery in docs.rglob("gallery.md"):
            text = gallery.read_text(encoding="utf-8")
            gallery.write_text(text.replace(' src="../gallery/', ' src="gallery/'), "utf-8")
        page = listening_page(galleries(docs))
        (docs / "listening.md").write_text(page, encoding="utf-8")
        shutil.copy(ROOT / "mkdocs.yml", root)
        (root / "src").symlink_to(ROOT / "src")
        subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"], cwd=root, check=True
        )
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(root / "site", out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder to replace")
    try:
        build(parser.parse_args().out)
    except subprocess.CalledProcessError:
        sys.exit("the site was not built; see the warnings above")
