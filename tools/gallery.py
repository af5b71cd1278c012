"""Write docs/gallery.md: 24 prompts, each with its spectrogram, its sound and what is known of it.

    python tools/gallery.py                       # the bundled model into docs/
    python tools/gallery.py --bundle my-bundle --out elsewhere

Nothing is picked: every prompt has the seed of its place in the list, and what comes out is shown.
The same bundle gives the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import html
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffsound.audio.spectrogram import spectrogram_image
from diffsound.errors import DiffsoundError
from diffsound.files import atomic_write
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import slug
from diffsound.generation.sound import Sound

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "gallery"
PICTURE = (480, 120)
COLOURS = 48  # a quarter of the bytes of true colour, and no difference to the eye


@dataclass(frozen=True)
class Example:
    """A prompt and how long it lasts, in seconds."""

    prompt: str
    seconds: float = 4.0


EXAMPLES = (
    # Animals
    Example("a dog barks", 3.0),
    Example("a cat meows", 3.0),
    Example("a rooster crows", 3.0),
    Example("birds chirp in a forest in the morning"),
    Example("frogs croak at a pond"),
    # Weather and water
    Example("heavy rain falls on a roof"),
    Example("thunder rumbles in the distance"),
    Example("waves break on a beach"),
    Example("water is poured into a glass", 3.0),
    # People
    Example("a person sneezes", 3.0),
    Example("an audience applauds"),
    Example("footsteps on gravel"),
    # Doors and things
    Example("a heavy door creaks open", 3.0),
    Example("someone knocks on a wooden door", 3.0),
    Example("a glass breaks", 3.0),
    # Tools and vehicles
    Example("a chainsaw cuts wood"),
    Example("an old clock ticks"),
    Example("a police siren wails"),
    Example("a helicopter flies past"),
    # Interfaces
    Example("a short notification beep", 3.0),
    # Two events
    Example("rain falls, then a dog barks", 5.0),
    Example("church bells ring while crows caw", 5.0),
    # Far from anything it has heard
    Example("a symphony orchestra plays a waltz", 5.0),
    Example("a man reads the evening news", 5.0),
)

HEAD = """# Gallery

What the model `{name}` makes of {count} prompts. Nothing is picked: each prompt has the seed of its
place in the list, the bad ones included, and `python tools/gallery.py` makes this page again.
"""

# The player's address is relative to the page's own folder in the built site.
ENTRY = """
## {number}. {prompt}

![Spectrogram of “{prompt}”]({folder}/{name}.png){{ width={width} height={height} loading=lazy }}

<audio controls preload="none" src="../{folder}/{name}.ogg"></audio>

Seed {number}, {seconds:g} s.{note}
"""


def make_gallery(
    out: Path, bundle: str | None = None, examples: Sequence[Example] = EXAMPLES
) -> Path:
    """Make every sound and the page that shows them; returns the page."""
    pipeline = TextToSound.from_pretrained(bundle)
    folder = out / FOLDER
    fresh = out / f".{FOLDER}-new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    entries = []
    for number, example in enumerate(examples, 1):
        sound = pipeline(example.prompt, duration=example.seconds, seed=number)[0]
        name = f"{number:02d}-{slug(example.prompt)}"
        sound.save(fresh / f"{name}.ogg")
        _save_picture(sound, fresh / f"{name}.png")
        entries.append(_entry(number, example, name, sound))
    # The old ones go only now, when nothing can fail any more.
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    head = HEAD.format(name=pipeline.bundle.config.name, count=len(examples))
    page = out / "gallery.md"
    with atomic_write(page) as temporary:
        temporary.write_text(head + "".join(entries), encoding="utf-8")
    return page


def _entry(number: int, example: Example, name: str, sound: Sound) -> str:
    note = "" if sound.coverage is None else f" The model finds it {sound.coverage['note']}."
    return ENTRY.format(
        number=number,
        prompt=html.escape(example.prompt),
        folder=FOLDER,
        name=name,
        width=PICTURE[0],
        height=PICTURE[1],
        seconds=example.seconds,
        note=html.escape(note, quote=False),
    )


def _save_picture(sound: Sound, path: Path) -> None:
    picture = spectrogram_image(sound.mel, size=PICTURE).quantize(COLOURS)
    with atomic_write(path) as temporary:
        picture.save(temporary, format="PNG", optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", help="bundle folder or hub id; the bundled model by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder for page and files")
    given = parser.parse_args(arguments)
    try:
        page = make_gallery(given.out, given.bundle)
    except DiffsoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
