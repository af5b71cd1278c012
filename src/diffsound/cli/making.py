"""From options to files: what `generate` and every edit have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from diffsound.cli.options import MakingOptions
from diffsound.cli.output import Target, choose_seeds, write_sounds
from diffsound.cli.play import find_player, play
from diffsound.cli.progress import progress_bar

if TYPE_CHECKING:
    from diffsound.pipeline import Ranker
    from diffsound.sound import Sound


def make_sounds(
    draw: Callable[..., list[Sound]],
    prompt: str,
    target: Target,
    making: MakingOptions,
    *,
    keep: int | None = None,
    ranker: Ranker | None = None,
) -> None:
    """Draw sounds with `draw(pipeline, **options)`, write them, and play them if asked.

    What cannot be written or played is refused before the model is loaded.
    keep: how many of the candidates `draw` gives back, if not all. ranker: what chooses them.
    """
    target.check()
    player = find_player(target.ending) if making.play_it else None
    seeds = choose_seeds(making.seed, making.candidates)
    target.check_free(prompt, seeds, making.candidates if keep is None else keep)
    pipeline = making.load(ranker)
    with progress_bar(prompt[:40], making.quiet or making.as_json) as show:
        sounds = draw(
            pipeline,
            seed=seeds[0],
            num_candidates=making.candidates,
            callback=lambda share, tokens: show(share),
            **making.settings,
        )
    for path in write_sounds(
        sounds, target, loudness=making.loudness, as_json=making.as_json, quiet=making.quiet
    ):
        if player is not None:
            play(player, path)
