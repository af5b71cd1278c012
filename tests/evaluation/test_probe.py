"""The probe over an outside ear: its clips, its figures, and any sounds by a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from typer.testing import CliRunner

from diffsound.audio.io import write_audio
from diffsound.cli.evaluate import app
from diffsound.data.shards import PreparedData
from diffsound.errors import DataError, InputError
from diffsound.evaluation.ears import OutsideEar, load_ear
from diffsound.evaluation.features import FeatureCache, file_clip, wave_clip
from diffsound.evaluation.probe import (
    FRECHET,
    Probe,
    embed_clips,
    principal_frechet,
    read_real_clips,
)
from ear_support import onnx_ear
from metric_support import RATE, clip, sound


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> OutsideEar:
    return load_ear(onnx_ear(tmp_path_factory.mktemp("ear")))


def vectors(label: int, count: int, seed: int) -> np.ndarray:
    """Embeddings of a class: a cloud around a corner of its own."""
    rng = np.random.default_rng(seed)
    return (3 * np.eye(4)[label] + 0.3 * rng.standard_normal((count, 4))).astype(np.float32)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """Four folds of three classes, ten clips each."""
    path = tmp_path / "real.npz"
    parts = [(label, fold) for fold in (1, 2, 3, 4) for label in range(3)]
    embeddings = np.concatenate([vectors(label, 10, 7 * fold + label) for label, fold in parts])
    names = ("dog", "sea_waves", "Crying_Baby")
    labels = np.repeat([names[label] for label, _ in parts], 10)
    folds = np.repeat([fold for _, fold in parts], 10)
    np.savez(path, E=embeddings.astype(np.float16), Y=labels, F=folds)
    return path


def test_embeddings_in_a_file_are_read_by_folds(npz: Path, ear: OutsideEar) -> None:
    real = read_real_clips(npz, ear)
    assert (real.fit.sum(), real.reference.sum()) == (90, 30)
    assert real.parts == {"fit": "1, 2, 3", "reference": "4"}
    assert set(real.labels) == {"dog", "sea waves", "crying baby"}
    other = read_real_clips(npz, ear, fit=["2"], reference=["1", "3"])
    assert (other.fit.sum(), other.reference.sum()) == (30, 60)
    rest = read_real_clips(npz, ear, reference=["2"])
    assert rest.parts == {"fit": "1, 3, 4", "reference": "2"}
    for names, message in (
        ({"fit": ["5"]}, r"no fold '5'; it has: 1, 2, 3, 4"),
        ({"fit": ["4"], "reference": ["4"]}, "cannot be fitted on the folds"),
    ):
        with pytest.raises(DataError, match=message):
            read_real_clips(npz, ear, **names)


def test_bad_embedding_files_are_reported(tmp_path: Path, npz: Path, ear: OutsideEar) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"must be an \.npz file"):
        read_real_clips(path, ear)
    np.savez(path, E=np.zeros((3, 2)), Y=np.array(["a", "b", "c"]))
    with pytest.raises(DataError, match="F"):
        read_real_clips(path, ear)
    np.savez(path, E=np.zeros((3, 2)), Y=np.array(["a"]), F=np.array([1, 2, 3]))
    with pytest.raises(DataError, match="do not match in length"):
        read_real_clips(path, ear)
    np.savez(path, E=np.zeros((3, 2)), Y=np.array(["a", "a", "a"]), F=np.array([1, 2, 2]))
    with pytest.raises(DataError, match="two classes"):
        read_real_clips(path, ear)
    np.savez(path, E=np.zeros(1, dtype=object), Y=np.zeros(1), F=np.zeros(1))
    with pytest.raises(DataError, match=r"must be an \.npz file"):  # nothing is unpickled
        read_real_clips(path, ear)


def test_prepared_clips_are_heard_at_their_own_rate(sound_data: Path, ear: OutsideEar) -> None:
    """All clips of this folder have one label, so a probe is refused after hearing them."""
    told: list[tuple[int, int]] = []
    with pytest.raises(DataError, match="two classes"):
        read_real_clips(sound_data, ear, progress=lambda _, done, of: told.append((done, of)))
    assert told[-1] == (19, 19)
    wave = PreparedData.open(sound_data).wave(0)
    one = embed_clips(ear, [wave_clip("x", wave, RATE)])
    np.testing.assert_allclose(one.vectors[0], ear(wave, RATE))


def test_the_clips_of_a_data_source_are_heard(tmp_path: Path, ear: OutsideEar) -> None:
    lines = ["filename,fold,target,category,esc10,src_file,take"]
    (tmp_path / "meta").mkdir()
    (tmp_path / "audio").mkdir()
    for number, (fold, name) in enumerate((f, n) for f in (1, 4) for n in ("dog", "sea_waves")):
        for take in (0, 1):
            file = f"{fold}-{number}-{take}.wav"
            write_audio(tmp_path / "audio" / file, sound(2 * number + take), RATE)
            lines.append(f"{file},{fold},0,{name},False,{number}{take},A")
    (tmp_path / "meta" / "esc50.csv").write_text("\n".join(lines) + "\n")
    real = read_real_clips(tmp_path, ear)
    assert real.parts == {"fit": "train", "reference": "valid"}
    assert (real.fit.sum(), real.reference.sum()) == (4, 4)
    assert set(real.labels) == {"dog", "sea waves"}


def test_unreadable_clips_are_named_and_cached_ones_not_heard_again(
    tmp_path: Path, ear: OutsideEar
) -> None:
    heard: list[int] = []

    def embed(wave: np.ndarray, rate: int) -> np.ndarray:
        heard.append(len(wave))
        return ear(wave, rate)

    counted = OutsideEar("counted", "some hash", embed, cached=True)
    clips = [clip(1), clip(2)]
    with FeatureCache(tmp_path / "cache.sqlite") as cache:
        first = embed_clips(counted, clips, cache=cache)
        again = embed_clips(counted, clips, cache=cache)
        np.testing.assert_array_equal(first.vectors, again.vectors)
        assert len(heard) == 2
        python = OutsideEar("python", "some hash", embed, cached=False)
        embed_clips(python, clips, cache=cache)
        assert len(heard) == 4
    lost = file_clip("lost", tmp_path / "lost.wav")
    with pytest.raises(InputError, match="can hear no clip"):
        embed_clips(ear, [lost])
    found = embed_clips(ear, [lost, clip(3)])
    assert found.ids == ("clip-3",)
    assert "lost" in found.failed["lost"]


def by_scipy(a: np.ndarray, b: np.ndarray) -> float:
    first, second = np.cov(a.T), np.cov(b.T)
    apart = a.mean(0) - b.mean(0)
    root = scipy.linalg.sqrtm(first @ second).real
    return float(apart @ apart + np.trace(first + second - 2 * root))


def test_the_probe_recognises_and_measures(npz: Path, ear: OutsideEar) -> None:
    probe = Probe(read_real_clips(npz, ear))
    assert probe.labels == ("crying baby", "dog", "sea waves")
    assert probe.places(["Sea_waves", "crying baby", "cat"]).tolist() == [2, 0, -1]
    given = np.concatenate([vectors(0, 8, 100), vectors(1, 8, 101)])
    figures = probe.figures(given, probe.places(["dog"] * 8 + ["dog"] * 8))
    assert figures["top-1"].value == 0.5  # the second half are sea waves
    assert figures["top-5"].value == 1.0
    low, high = figures["top-1"].low, figures["top-1"].high
    assert low is not None
    assert high is not None
    assert 0 < low < 0.5 < high < 1
    held = probe.real.vectors[probe.real.reference].astype(np.float64)
    assert figures[FRECHET].value == pytest.approx(by_scipy(given, held), rel=1e-4)
    assert "16 clips make it too large" in figures[FRECHET].note
    real = probe.real_figures()
    assert real["top-1"].value == 1.0
    assert (real[FRECHET].value or 0) < (figures[FRECHET].value or 0) / 10
    assert probe.figures(given[:1], np.array([0]))[FRECHET].value is None
    with pytest.raises(InputError, match="another ear"):
        probe.scores(np.zeros((1, 5)))


def test_distances_are_taken_in_principal_components() -> None:
    """With more features than components, only the reference's main directions count."""
    rng = np.random.default_rng(0)
    scale = np.concatenate([np.ones(64), np.full(36, 1e-3)])
    reference = rng.standard_normal((300, 100)) * scale
    shifted = reference.copy()
    shifted[:, 80] += 1.0
    moved = reference.copy()
    moved[:, 3] += 1.0
    assert principal_frechet(moved, reference) == pytest.approx(1.0, abs=0.2)
    assert principal_frechet(reference, reference) == pytest.approx(0.0, abs=1e-6)


LEVELS = (1.0, 1.0, 0.02, 0.02)  # loud dogs, a quiet sea


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    for number, level in enumerate(LEVELS):
        write_audio(tmp_path / f"{number}.wav", level * sound(number), RATE)
    path = tmp_path / "sounds.csv"
    path.write_text("file,class\n0.wav,dog\n1.wav,dog\n2.wav,sea_waves\n3.wav,sea waves\n")
    return path


def test_a_manifest_is_heard_from_the_command_line(manifest: Path, tmp_path: Path) -> None:
    plug = onnx_ear(tmp_path)
    ear = load_ear(plug)
    embedded = np.stack([ear(level * sound(n), RATE) for n, level in enumerate(LEVELS)] * 2)
    names = np.array(["dog", "dog", "sea_waves", "sea_waves"] * 2)
    np.savez(tmp_path / "real.npz", E=embedded, Y=names, F=np.repeat(["a", "b"], 4))
    words = ["hear", manifest, "--ear", plug, "--ear-clips", tmp_path / "real.npz"]
    words += ["--json", tmp_path / "out.json"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("real: top-1 1, top-5 1, Fréchet distance")
    assert lines[1].startswith("given: top-1 1, top-5 1, Fréchet distance")
    assert "  dog: 2 of 2, heard as dog 2" in lines
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert report["rows"]["given"]["clips"] == 4
    assert report["rows"]["given"]["scores"][FRECHET]["value"] == pytest.approx(0, abs=0.01)
    for content, message in (
        ("file,class\n0.wav,whale\n", "does not know the classes: whale"),
        ("file,class\nnone.wav,dog\n", "none.wav"),
        ("name,class\n0.wav,dog\n", "columns file and class"),
        ("file,class\n", "names no sounds"),
    ):
        manifest.write_text(content)
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert isinstance(done.exception, DataError | InputError), content
        assert message in str(done.exception)
