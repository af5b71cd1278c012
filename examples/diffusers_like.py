"""The arguments are called as in diffusers, so that scripts need few changes.

    python examples/diffusers_like.py "a dog barks" --out dog.wav

With AudioLDM 2 in diffusers on the left, and diffsound on the right:

    AudioLDM2Pipeline.from_pretrained(NAME)    TextToSound.from_pretrained()
    pipe.to("cuda")                            TextToSound.from_pretrained(device="cuda")
    pipe(…, audio_length_in_s=5)               pipe(…, duration=5)
    pipe(…, num_waveforms_per_prompt=4)        pipe(…, num_candidates=4, keep=4)
    pipe(…).audios[0]                          pipe(…)[0].wave
"""

from __future__ import annotations

import argparse

import torch

from diffsound import TextToSound


def main() -> None:
    parser = argparse.ArgumentParser(description="Make one sound, the best of four.")
    parser.add_argument("prompt")
    parser.add_argument("--out", default="sound.wav")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--bundle", help="folder or hub id; the bundled model by default")
    given = parser.parse_args()

    pipe = TextToSound.from_pretrained(given.bundle)
    (sound,) = pipe(
        given.prompt,
        negative_prompt="wind noise",
        duration=2.0,
        num_inference_steps=given.steps,
        guidance_scale=2.5,
        num_candidates=4,
        keep=1,
        generator=torch.Generator().manual_seed(0),
    )
    print(sound, sound.save(given.out))


if __name__ == "__main__":
    main()
