"""Make the six sounds that can be heard on the web page before anything is generated.

    python tools/page_examples.py                       # the bundled model, into the package
    python tools/page_examples.py --bundle my-bundle --out elsewhere

Every group below has a few prompts. Each prompt is made with the same seeds, the bundle's own
classifier listens, and the take it recognises most surely is the group's example. The command
fails if a group has no recognised take: the page shows only what the model does well. The same
bundle gives the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffsound import DiffsoundError, Sound, TextToSound
from diffsound.audio.spectrogram import envelope
from diffsound.generation.settings import slug
from diffsound.judges import load_judge

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "src" / "diffsound" / "serving" / "web" / "examples"
MANIFEST = "examples.json"
FIRST_SEED, TAKES = 1, 6
PEAKS = 96  # enough for a waveform as wide as a phone's thumb can tell apart
# Below this the classifier is not sure; real clips have a median of about 0.9.
SURE = 0.5


@dataclass(frozen=True)
class Idea:
    """A prompt, the classifier's label for it, and its length in seconds."""

    prompt: str
    label: str
    seconds: float = 4.0


# Only what the classifier and an outside ear both recognise in six or more of the card's ten
# sentences (docs/recognition.md).
GROUPS: tuple[tuple[Idea, ...], ...] = (
    (Idea("a dog barks", "dog", 3.0), Idea("a sheep bleats", "sheep", 3.0)),
    (Idea("a thunderstorm", "thunderstorm", 5.0), Idea("an airplane passes", "airplane", 5.0)),
    (Idea("someone saws wood", "hand saw"), Idea("a clock ticks", "clock tick")),
    (Idea("a campfire crackles", "crackling fire", 5.0), Idea("crickets at night", "crickets")),
    (Idea("someone brushes their teeth", "brushing teeth"), Idea("a man snores", "snoring")),
    (Idea("frogs croak at a pond", "frog"), Idea("a hen clucks", "hen", 3.0)),
)


@dataclass(frozen=True)
class Take:
    """A sound and how surely the classifier hears its label in it, 0 to 1."""

    idea: Idea
    sound: Sound
    sureness: float


def make_examples(
    out: Path, bundle: str | None = None, groups: Sequence[Sequence[Idea]] = GROUPS
) -> Path:
    """Make every group's example and the manifest; returns the manifest."""
    pipeline = TextToSound.from_pretrained(bundle)
    classifier = _classifier(pipeline)
    chosen = []
    for group in groups:
        best = max(
            (take for idea in group for take in _takes(pipeline, classifier, idea)),
            key=lambda take: take.sureness,
        )
        if best.sureness < SURE:
            prompts = ", ".join(f"'{idea.prompt}'" for idea in group)
            raise DiffsoundError(
                f"none of {prompts} is recognised: {best.sureness:.2f} at best; try other prompts"
            )
        print(f"{best.sureness:.2f}  {best.sound.prompt}, seed {best.sound.seed}", file=sys.stderr)
        chosen.append(best)
    fresh = out.with_name(f".{out.name}-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    entries = [_save(take, fresh) for take in chosen]
    manifest = {"bundle": pipeline.bundle.config.name, "examples": entries}
    text = json.dumps(manifest, ensure_ascii=False, indent=1)
    (fresh / MANIFEST).write_text(text + "\n", encoding="utf-8")
    # The old ones go only now, when nothing can fail any more.
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)
    return out / MANIFEST


def _classifier(pipeline: TextToSound) -> Any:
    folder = pipeline.bundle.judges.get("classifier")
    if folder is None:
        raise DiffsoundError("the bundle has no classifier, which chooses the examples")
    return load_judge("classifier", folder)


def _takes(pipeline: TextToSound, classifier: Any, idea: Idea) -> list[Take]:
    if idea.label not in classifier.config.labels:
        raise DiffsoundError(f"the bundle's classifier does not know '{idea.label}'")
    place = classifier.config.labels.index(idea.label)
    sounds = pipeline(
        idea.prompt, duration=idea.seconds, num_candidates=TAKES, seed=FIRST_SEED, layered=False
    )
    takes = []
    for sound in sounds:
        # The wave is heard, not the mel it was made from: that is what a visitor hears.
        with torch.inference_mode():
            mel = pipeline.bundle.mel_front_end(torch.from_numpy(sound.wave)[None])
            heard = classifier(mel).logits.softmax(dim=1)
        takes.append(Take(idea, sound, float(heard[0, place])))
    return takes


def _save(take: Take, folder: Path) -> dict[str, Any]:
    name = f"{slug(take.idea.prompt)}.ogg"
    take.sound.save(folder / name)
    peaks = np.abs(envelope(take.sound.wave, PEAKS)).max(axis=1)
    return {
        "prompt": take.idea.prompt,
        "file": name,
        "duration": take.idea.seconds,
        "seed": take.sound.seed,
        "layered": False,
        "peaks": [round(float(peak), 2) for peak in peaks / max(float(peaks.max()), 1e-6)],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", help="bundle folder or hub id; the bundled model by default")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for sounds and manifest")
    given = parser.parse_args(arguments)
    try:
        print(make_examples(given.out, given.bundle))
    except DiffsoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
