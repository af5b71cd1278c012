"""A game whose sounds never repeat: every step is one of several takes.

    pip install pygame-ce
    python examples/pygame_steps.py

Move with the arrow keys; Space knocks. With `--frames 60` it walks by itself and ends, for tests.
"""

from __future__ import annotations

import argparse
import random

import numpy as np
import pygame

import diffsound

SIZE = 480
SOUNDS = {"step": "footsteps on gravel", "knock": "someone knocks on a wooden door"}
KEYS = {
    pygame.K_LEFT: (-24, 0),
    pygame.K_RIGHT: (24, 0),
    pygame.K_UP: (0, -24),
    pygame.K_DOWN: (0, 24),
    pygame.K_SPACE: (0, 0),
}


def pcm(sound: diffsound.Sound) -> bytes:
    """The wave as 16-bit samples."""
    return (sound.wave * 32767).astype(np.int16).tobytes()


def load_sounds(bundle: str | None, takes: int = 4) -> dict[str, list[pygame.mixer.Sound]]:
    """Several takes of each sound."""
    pipeline = diffsound.load(bundle)
    pygame.mixer.init(pipeline.sample_rate, size=-16, channels=1, allowedchanges=0)
    made = pipeline(list(SOUNDS.values()), num_candidates=takes, duration=0.6, seed=1)
    clips = [pygame.mixer.Sound(buffer=pcm(sound)) for sound in made]
    return {name: clips[i * takes : (i + 1) * takes] for i, name in enumerate(SOUNDS)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Walk and knock.")
    parser.add_argument("--bundle", help="folder or hub id; the bundled model by default")
    parser.add_argument("--frames", type=int, help="walk by itself and stop after this many frames")
    given = parser.parse_args()

    sounds = load_sounds(given.bundle)
    pygame.display.init()
    screen = pygame.display.set_mode((SIZE, SIZE))
    pygame.display.set_caption("Arrow keys walk, Space knocks")
    player = pygame.Rect(SIZE // 2, SIZE // 2, 24, 24)
    clock, frame, played, running = pygame.time.Clock(), 0, 0, True
    while running and (given.frames is None or frame < given.frames):
        if given.frames is not None:
            key = pygame.K_SPACE if frame % 10 == 9 else pygame.K_RIGHT
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                running = False
            elif event.type == pygame.KEYDOWN and event.key in KEYS:
                player = player.move(KEYS[event.key]).clamp(screen.get_rect())
                name = "knock" if event.key == pygame.K_SPACE else "step"
                random.choice(sounds[name]).play()
                played += 1
        screen.fill("grey20")
        pygame.draw.rect(screen, "orange", player, border_radius=6)
        pygame.display.flip()
        clock.tick(30)
        frame += 1
    pygame.quit()
    print(f"{played} sounds played in {frame} frames")


if __name__ == "__main__":
    main()
