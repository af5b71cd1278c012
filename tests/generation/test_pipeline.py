"""Text to sound, end to end on a tiny bundle."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import diffsound
from diffsound.audio.io import read_audio, write_audio
from diffsound.audio.mixing import level_db
from diffsound.decoder import build_decoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.errors import InputError
from diffsound.generation.jobs import EditOptions, LoadOptions
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import GivenSettings
from diffsound.generation.sound import Layer, fade_edges, read_recipe
from diffsound.model.backends import default_backend, networks, quantize_int8
from diffsound.model.bundle import Bundle
from diffsound.text.features import TextFeatures
from diffsound.threads import torch_threads
from support import with_defaults


def test_one_prompt(pipeline: TextToSound) -> None:
    (sound,) = pipeline("a dog barks", duration=1.5, seed=1)
    assert sound.wave.dtype == np.float32
    assert len(sound.wave) == round(1.5 * 22050)
    assert np.isfinite(sound.wave).all()
    assert np.abs(sound.wave).max() > 0
    assert sound.tokens.shape == (
        pipeline.bundle.codec.rows,
        pipeline.bundle.columns(len(sound.wave)),
    )
    assert sound.prompt == "a dog barks"
    assert sound.seed == 1
    assert sound.settings["num_inference_steps"] == 3


def test_no_wave_exceeds_full_scale(tiny_bundle: Bundle) -> None:
    """Whatever a vocoder gives; a notebook's player would clip it."""
    pipeline = TextToSound(tiny_bundle)
    plain = pipeline("rain", seed=1)[0].wave
    vocoder = pipeline.vocoder
    pipeline.vocoder = lambda mel, generator=None: 1e6 * vocoder(mel)  # type: ignore[assignment]
    loud = pipeline("rain", seed=1)[0].wave
    assert np.abs(loud).max() == pytest.approx(0.99)
    np.testing.assert_allclose(loud / np.abs(loud).max(), plain / np.abs(plain).max(), atol=1e-4)


def test_sounds_are_brought_to_a_level(pipeline: TextToSound) -> None:
    (drawn,) = pipeline("rain", seed=1, level=None)
    own = level_db(drawn.wave, 22050)
    assert own is not None
    (near,) = pipeline("rain", seed=1, level=min(0.0, own + 5))
    assert near.gain == pytest.approx(drawn.gain)
    quiet, quieter = (pipeline("rain", seed=1, level=level)[0] for level in (-46.0, -56.0))
    assert level_db(quiet.wave, 22050) == pytest.approx(-40, abs=0.01)
    np.testing.assert_allclose(quiet.wave, drawn.wave * (quiet.gain / drawn.gain), rtol=1e-4)
    assert quieter.gain / quiet.gain == pytest.approx(10**-0.5, rel=1e-3)
    assert np.array_equal(quiet.tokens, drawn.tokens)
    assert quiet.settings["level"] == -46.0
    (loud,) = pipeline("rain", seed=1, level=0.0)
    most = 10 ** (24 / 20) * np.abs(drawn.wave).max()  # nothing is raised by more than 24 dB
    assert np.abs(loud.wave).max() == pytest.approx(min(0.99, most), abs=1e-3)
    with pytest.raises(InputError, match="level must be"):
        pipeline("rain", level=3.0)


@pytest.mark.parametrize("duration", [0.5, 0.777, 3.0, 30.0])
def test_durations(pipeline: TextToSound, duration: float) -> None:
    (sound,) = pipeline("rain", duration=duration, num_inference_steps=1, seed=0)
    assert len(sound.wave) == round(duration * 22050)


def test_same_seed_same_sound_other_seed_other_sound(pipeline: TextToSound) -> None:
    first, again, other = (pipeline("rain", seed=s)[0] for s in (5, 5, 6))
    assert np.array_equal(first.wave, again.wave)
    assert not np.array_equal(first.tokens, other.tokens)


def test_generation_leaves_the_global_random_state_alone(pipeline: TextToSound) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    pipeline("rain", seed=5)
    assert torch.equal(torch.rand(4), expected)


def test_candidates_and_lists_equal_single_calls(tiny_bundle: Bundle) -> None:
    # Micro-batches of two, so that the five jobs are split across batches.
    pipeline = TextToSound(tiny_bundle, max_batch_seconds=2.5)
    together = pipeline(["rain", "a long sentence about a dog"], num_candidates=2, seed=8)
    alone = [
        pipeline(prompt, seed=seed)[0]
        for prompt in ("rain", "a long sentence about a dog")
        for seed in (8, 9)
    ]
    assert [s.seed for s in together] == [8, 9, 8, 9]
    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.wave, b.wave)


@pytest.mark.parametrize("duration", [0.5, 1.0, 2.3])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_the_number_of_threads_changes_nothing(
    pipeline: TextToSound, duration: float, guidance: float
) -> None:
    made = []
    for count in (1, 2, 3):
        with torch_threads(count):
            options = {"duration": duration, "guidance_scale": guidance, "seed": 4}
            made.append(pipeline("a dog barks in the rain", **options)[0])
    for sound in made[1:]:
        assert np.array_equal(sound.tokens, made[0].tokens)
        assert np.array_equal(sound.wave, made[0].wave)


def test_the_number_of_torch_threads_is_restored() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def work() -> None:
        with torch_threads(before + 1):
            seen.append(torch.get_num_threads())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_generator_gives_the_seed(pipeline: TextToSound) -> None:
    sounds = [pipeline("rain", generator=torch.Generator().manual_seed(4))[0] for _ in range(2)]
    assert sounds[0].seed == sounds[1].seed
    assert pipeline("rain", seed=sounds[0].seed)[0].seed == sounds[0].seed


def test_negative_prompt_and_guidance_matter(pipeline: TextToSound) -> None:
    tokens = [
        pipeline("rain", seed=1, guidance_scale=g, negative_prompt=n)[0].tokens
        for g, n in ((1.0, None), (6.0, None), (6.0, "dogs"))
    ]
    assert not np.array_equal(tokens[0], tokens[1])
    assert not np.array_equal(tokens[1], tokens[2])


def test_callback_reaches_one(pipeline: TextToSound) -> None:
    seen: list[float] = []
    pipeline("rain", num_candidates=2, seed=0, callback=lambda share, tokens: seen.append(share))
    assert seen == sorted(seen)
    assert math.isclose(seen[-1], 1.0)


def test_recipes_of_older_files_are_read(tmp_path: Path) -> None:
    """They have JSON inside JSON."""
    recipe = {"prompt": "rain", "seed": 3}
    note = {"diffsound": json.dumps(recipe)}
    write_audio(tmp_path / "x.wav", np.zeros(2205), 22050, metadata=note)
    assert read_recipe(tmp_path / "x.wav") == recipe
    write_audio(tmp_path / "y.wav", np.zeros(2205), 22050, metadata={"diffsound": "no JSON"})
    assert read_recipe(tmp_path / "y.wav") is None


def test_saved_sound_carries_its_recipe(pipeline: TextToSound, tmp_path) -> None:
    (sound,) = pipeline("büllerbü ☂", seed=3)
    for suffix in ("wav", "flac", "ogg", "mp3"):
        path = sound.save(tmp_path / f"x.{suffix}")
        assert read_recipe(path) == sound.metadata
        with soundfile.SoundFile(path) as file:
            assert (file.title, file.artist) == ("büllerbü ☂", "diffsound")
            assert date.fromisoformat(file.date)
            assert json.loads(file.comment)["diffsound"]["seed"] == 3
        wave = read_audio(path)
        assert abs(len(wave) - len(sound.wave)) < 3000  # lossy formats pad
        assert np.abs(wave).max() <= 1.0
    assert sound.save_spectrogram(tmp_path / "x.png").stat().st_size > 100
    page = sound._repr_html_()
    assert "<audio controls" in page
    assert "data:image/png" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": " \t\n"}, "empty"),
        ({"prompt": "\x00\x1b"}, "empty"),
        ({"prompt": "a" * 100_000}, "characters"),
        ({"prompt": []}, "at least one"),
        ({"duration": 0}, "duration"),
        ({"duration": -3}, "duration"),
        ({"duration": 1e9}, "duration"),
        ({"duration": math.nan}, "duration"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 1, "generator": torch.Generator()}, "not both"),
        ({"num_candidates": 0}, "num_candidates"),
        ({"num_candidates": 10**6}, "num_candidates"),
        ({"sampler": "magic"}, "sampler"),
        ({"num_inference_steps": 0}, "steps"),
        ({"num_inference_steps": 10_000}, "steps"),
        ({"top_k": 0}, "top_k"),
        ({"truncation": 2.0}, "truncation"),
        ({"temperature": -1.0}, "temperature"),
        ({"guidance_scale": math.nan}, "guidance"),
        ({"magic": 1}, "unknown setting 'magic'"),
    ],
)
def test_bad_input_is_one_line(pipeline: TextToSound, arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        pipeline(**{"prompt": "rain", **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "prompt", ["犬が吠える", "🐶🐶🐶", "e\u0301", "\u202edog", "DROP TABLE;--", "'\""]
)
def test_any_unicode_prompt_makes_a_sound(pipeline: TextToSound, prompt: str) -> None:
    assert np.isfinite(pipeline(prompt, seed=0, num_inference_steps=1)[0].wave).all()


def test_ar_bundle_keeps_the_same_contract(tiny_ar_bundle: Bundle) -> None:
    pipeline = TextToSound(tiny_ar_bundle)
    (sound,) = pipeline("rain", seed=1)
    assert np.array_equal(sound.tokens, pipeline("rain", seed=1)[0].tokens)


@pytest.mark.parametrize("name", ["tiny_bundle", "tiny_ar_bundle"])
def test_int8_backend(name: str, request: pytest.FixtureRequest, tmp_path) -> None:
    """Nearly the same logits, so mostly the same tokens; alone or in a batch all of them."""
    request.getfixturevalue(name).save_pretrained(tmp_path / "bundle")
    exact = TextToSound.from_pretrained(tmp_path / "bundle")
    rough = TextToSound.from_pretrained(tmp_path / "bundle", backend="int8")
    options = {"duration": 2.0, "seed": 5, "num_candidates": 3}
    before, after = exact("rain", **options), rough("rain", **options)
    same = np.mean([np.mean(a.tokens == b.tokens) for a, b in zip(before, after, strict=True)])
    assert same > 0.7
    (alone,) = rough("rain", duration=2.0, seed=6)
    assert np.array_equal(alone.tokens, after[1].tokens)
    with pytest.raises(InputError, match="runs on the CPU"):
        networks(rough.bundle, "int8", "cuda")


def test_a_bundle_chooses_its_backend_on_a_cpu(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_defaults(tiny_bundle, backend="int8").save_pretrained(tmp_path / "bundle")
    asked = {"duration": 1.0, "seed": 3}
    left_out = TextToSound.from_pretrained(tmp_path / "bundle")
    rough, exact = (
        TextToSound.from_pretrained(tmp_path / "bundle", backend=name) for name in ("int8", "torch")
    )
    assert [p.backend for p in (left_out, rough, exact)] == ["int8", "int8", "torch"]
    assert TextToSound(left_out.bundle).backend == "int8"
    assert np.array_equal(left_out("rain", **asked)[0].wave, rough("rain", **asked)[0].wave)
    assert np.array_equal(
        exact("rain", **asked)[0].wave, TextToSound(tiny_bundle)("rain", **asked)[0].wave
    )
    assert default_backend(left_out.bundle, "meta") == "torch"
    monkeypatch.setattr("diffsound.model.backends.int8_runs", lambda: False)
    assert default_backend(left_out.bundle, "cpu") == "torch"


@pytest.mark.parametrize("columns", [6, 40])
def test_int8_results_do_not_depend_on_the_number_of_threads(columns: int) -> None:
    """Two cores sum a column's 1024 numbers otherwise than one, and int8 would make much of it."""
    torch.manual_seed(0)
    config = DiffsoundConfig(
        layers=2, heads=5, width=320, rows=8, columns=40, codebook_size=64, text_dim=16,
        position="column", code_width=128, timesteps=10,
    )  # fmt: skip
    decoder = quantize_int8(build_decoder(config))
    features = torch.randn(1, 5, 16)
    text = TextFeatures(features, torch.ones(1, 5, dtype=torch.bool), features.mean(1))
    drawn = []
    for threads in (1, 2):
        with torch_threads(threads):
            generators = [torch.Generator().manual_seed(1)]
            drawn.append(decoder.generate(text, (8, columns), generators))
    assert torch.equal(*drawn)


def test_a_codec_that_draws_noise_still_gives_one_sound_per_seed(tiny_bundle: Bundle) -> None:
    pipeline = TextToSound(tiny_bundle)

    class NoisyCodec:
        def decode(
            self, tokens: torch.Tensor, generator: torch.Generator, text: torch.Tensor
        ) -> torch.Tensor:
            mel = tiny_bundle.codec.decode(tokens)
            return mel + 0.2 * torch.rand(mel.shape, generator=generator)

    plain = pipeline("rain", seed=5)[0]
    pipeline.codec = NoisyCodec()  # type: ignore[assignment]
    together = pipeline("rain", num_candidates=3, seed=4)
    (alone,) = pipeline("rain", seed=5)
    assert np.array_equal(together[1].wave, alone.wave)
    assert np.array_equal(alone.tokens, plain.tokens)
    assert not np.array_equal(alone.wave, plain.wave)
    smooth = [tiny_bundle.codec.decode(torch.from_numpy(s.tokens)[None])[0] for s in together[:2]]
    textures = [s.mel - mel.numpy() for s, mel in zip(together[:2], smooth, strict=True)]
    assert not np.allclose(*textures), "each sound has a texture of its own"


def test_fade_edges() -> None:
    faded = fade_edges(torch.ones(1000), 22050)
    assert faded[0] == faded[-1] == 0
    assert faded[500] == 1


class Loudness:
    """A ranker that prefers loud sounds."""

    def score(self, prompt: str, sounds: list) -> list[float]:
        return [float(np.abs(sound.wave).mean()) for sound in sounds]


def test_the_best_candidates_are_kept(tiny_bundle: Bundle) -> None:
    pipeline = TextToSound(tiny_bundle, ranker=Loudness())
    everything = pipeline(["rain", "a dog"], num_candidates=4, seed=3)
    kept = pipeline(["rain", "a dog"], num_candidates=4, keep=2, seed=3)
    assert [sound.prompt for sound in kept] == ["rain", "rain", "a dog", "a dog"]
    for prompt in ("rain", "a dog"):
        mine = [s for s in everything if s.prompt == prompt]
        loudest = sorted(mine, key=lambda s: -np.abs(s.wave).mean())[:2]
        assert [s.seed for s in kept if s.prompt == prompt] == [s.seed for s in loudest]
    assert kept[0].score is not None
    assert kept[0].score >= kept[1].score


def test_keep_needs_a_ranker_and_enough_candidates(
    pipeline: TextToSound, tiny_bundle: Bundle
) -> None:
    with pytest.raises(InputError, match="ranker"):
        pipeline("rain", num_candidates=3, keep=1)
    for keep in (0, 4):
        with pytest.raises(InputError, match="keep"):
            TextToSound(tiny_bundle, ranker=Loudness())("rain", num_candidates=3, keep=keep)


def test_sounds_show_players_in_a_notebook(pipeline: TextToSound) -> None:
    sounds = pipeline(["a dog <barks>", "rain"], duration=0.5, seed=3, num_inference_steps=1)
    assert isinstance(sounds, list)
    page = sounds._repr_html_()
    assert page.count("<audio controls") == page.count("data:image/png") == 2
    assert "a dog &lt;barks&gt; (seed 3)" in page
    edited = pipeline.vary(sounds[0], "a dog", seed=1, num_inference_steps=1)
    assert edited._repr_html_().count("<audio controls") == 1


def test_reprs_are_short(pipeline: TextToSound, tmp_path: Path) -> None:
    assert repr(pipeline) == "TextToSound('tiny', torch on cpu)"
    sounds = pipeline("rain", duration=0.5, seed=3, num_inference_steps=1)
    assert repr(sounds) == "[Sound('rain', 0.5 s, seed 3)]"
    assert repr(replace(sounds[0], score=0.3141)) == "Sound('rain', 0.5 s, seed 3, score 0.31)"
    layer = Layer("rain", 3, 0.0, 2.0, True, False, -12.0, np.zeros(4, np.float32))
    assert repr(layer) == "Layer('0.0 to 2.0 s: rain, far away')"


def test_a_sound_plays(
    pipeline: TextToSound, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sound,) = pipeline("rain", duration=0.5, seed=3, num_inference_steps=1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"no player for \.wav files"):
        sound.play()
    player = tmp_path / "ffplay"  # the one that every system can have
    player.write_text('#!/bin/sh\nfor file; do :; done\n/bin/cp "$file" "$0.wav"\n')
    player.chmod(0o755)
    sound.play()
    assert (tmp_path / "ffplay.wav").read_bytes() == sound.encode("wav")


def test_keywords_that_editors_complete_are_those_of_the_pipeline() -> None:
    """mypy checks their types where the keywords are passed on."""
    assert set(LoadOptions.__annotations__) == set(TextToSound.__init__.__kwdefaults__)
    taken = set(inspect.signature(TextToSound._edit).parameters) - {"self", "edit", "prompt"}
    taken = (taken - {"settings"}) | set(GivenSettings.__annotations__)
    assert set(EditOptions.__annotations__) | set(GivenSettings.__annotations__) == taken


def test_the_package_lists_its_names() -> None:
    """In a new process, where none has been loaded yet."""
    code = "import sys, diffsound; print('torch' in sys.modules, *dir(diffsound))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, *names = done.stdout.split()
    assert loaded == "False"
    assert set(diffsound.__all__) <= set(names)
