"""Draw the README's picture: what the bundled model makes of four prompts.

    python tools/readme_picture.py

Prompts and seeds are fixed, so the picture changes only with the model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from diffsound.audio.spectrogram import spectrogram_image
from diffsound.files import atomic_write
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.sound import Sound

PICTURE = Path(__file__).parents[1] / "docs" / "picture.png"
PROMPTS = (
    "a dog barks",
    "someone knocks on a wooden door",
    "waves break on a beach",
    "footsteps, then a cat meows",
)
SEED, SECONDS = 7, 4.0
WIDTH, HEIGHT, CAPTION, GAP = 430, 150, 26, 12  # pixels, of each spectrogram and around it


def strip(sounds: list[Sound]) -> Image.Image:
    """Spectrograms in two columns, each beneath its prompt."""
    rows = (len(sounds) + 1) // 2
    size = 2 * WIDTH + GAP, rows * (CAPTION + HEIGHT + GAP) - GAP
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(15)
    for place, sound in enumerate(sounds):
        x, y = place % 2 * (WIDTH + GAP), place // 2 * (CAPTION + HEIGHT + GAP)
        draw.text((x + 2, y + 3), f"“{sound.prompt}”", fill="black", font=font)
        mel = spectrogram_image(sound.mel, size=(WIDTH, HEIGHT))
        picture.paste(mel, (x, y + CAPTION))
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", help="a bundle's folder; the packaged one if missing")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    pipeline = TextToSound.from_pretrained(given.bundle)
    sounds = pipeline(PROMPTS, duration=SECONDS, seed=SEED)
    with atomic_write(given.out) as temporary:
        strip(sounds).save(temporary, format="PNG", optimize=True)
    print(f"{given.out}: {given.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
