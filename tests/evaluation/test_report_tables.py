"""The paper's tables at tiny size: measured, resumed, written."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from diffsound.data.shards import PreparedData
from diffsound.decoder.diffusion.samplers import timesteps_for
from diffsound.errors import ConfigError, DataError, InputError
from diffsound.evaluation.metrics import Score
from diffsound.evaluation.paper_tables import as_csv, markdown, paper_table
from diffsound.evaluation.tables import TableConfig, make_table
from diffsound.model.bundle import Bundle


@pytest.fixture(scope="module")
def ar_folder(tiny_ar_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_ar_bundle.save_pretrained(tmp_path_factory.mktemp("ar") / "tiny")


def config(data: Path, classifier: Path, **more: object) -> TableConfig:
    values = {
        "data": str(data), "classifier": str(classifier), "split": "valid", "seconds": 0.5,
        "clips": 3, "resamples": 0, "allow_few": True,
    }  # fmt: skip
    return TableConfig.model_validate(values | more)


def test_table_three_is_resumed_cell_by_cell(
    tiny_folder: Path, ar_folder: Path, sound_data: Path, classifier_run: Path,
    captioner_run: Path, tmp_path: Path,
) -> None:  # fmt: skip
    bundles = {"diffsound": str(tiny_folder)}
    wanted = config(sound_data, classifier_run, bundles=bundles, captioner=str(captioner_run))
    files = make_table(3, wanted, tmp_path)
    assert [path.suffix for path in files] == [".md", ".csv", ".json", ".png"]
    assert all(path.stat().st_size for path in files)
    lines = list(csv.DictReader(io.StringIO(files[1].read_text(encoding="utf-8"))))
    assert [line["row"] for line in lines][:2] == ["ar", "t25-s7"]
    assert lines[0]["FID"] == ""
    assert lines[0]["FID paper"] == "16.87"
    assert float(lines[1]["FID"]) >= 0
    assert "12 of 13 rows are measured." in files[0].read_text(encoding="utf-8")
    assert 0 < float(lines[1]["s/mel"]) < float(lines[1]["s/sound"])

    cells = sorted((tmp_path / "cells").iterdir())
    assert len(cells) == 12
    cells[0].unlink()
    marked = json.loads(cells[1].read_text(encoding="utf-8"))
    marked["scores"]["FID"]["value"] = 123.0
    cells[1].write_text(json.dumps(marked), encoding="utf-8")
    both = wanted.model_copy(
        update={"bundles": {"diffsound": str(tiny_folder), "ar": str(ar_folder)}}
    )
    make_table(3, both, tmp_path)
    found = json.loads(files[2].read_text(encoding="utf-8"))["rows"]
    assert found["ar"]["FID"]["value"] >= 0, "a new bundle's row is added"
    assert cells[0].stem in found, "a lost cell is made again"
    assert found[cells[1].stem]["FID"]["value"] == 123.0, "a finished cell is not"
    assert "| AR | - | - |" in files[0].read_text(encoding="utf-8")
    assert "rows are measured" not in files[0].read_text(encoding="utf-8")
    assert found["ar"]["s/mel, no cache"]["value"] > 0
    assert "s/mel, no cache" not in found["t25-s7"]


def test_a_table_that_is_stopped_shows_what_it_has(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    wanted = config(sound_data, classifier_run, bundles={"trained-25": str(tiny_folder)})
    make_table(5, wanted, tmp_path)
    bundles = {name: str(tiny_folder) for name in ("trained-25", "trained-50")}
    monkeypatch.setattr("diffsound.evaluation.tables._cell", stop)
    (tmp_path / "table-5.md").unlink()
    with pytest.raises(KeyboardInterrupt):
        make_table(5, wanted.model_copy(update={"bundles": bundles}), tmp_path)
    shown = (tmp_path / "table-5.md").read_text(encoding="utf-8")
    assert "1 of 6 rows are measured." in shown
    assert "| 50 | 25 | – (11.58) |" in shown


def test_table_seven_keeps_the_best(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, captioner_run: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    bundles = {"diffsound": str(tiny_folder)}
    wanted = config(sound_data, classifier_run, bundles=bundles, samples=5, clips=2)
    with monkeypatch.context() as patch:
        patch.setattr("diffsound.evaluation.sets.BUNDLED", tmp_path / "nothing" / "packaged")
        with pytest.raises(InputError, match="captioner"):
            make_table(7, wanted, tmp_path / "none")
    ranked = wanted.model_copy(update={"captioner": str(captioner_run), "ranker": "likelihood"})
    files = make_table(7, ranked, tmp_path / "out")
    rows = json.loads(files[2].read_text(encoding="utf-8"))["rows"]
    assert list(rows) == ["diffsound-10", "diffsound-5", "diffsound-2"]
    assert rows["diffsound-2"]["KL"]["value"] != rows["diffsound-10"]["KL"]["value"]
    assert rows["diffsound-2"]["scene graph"]["value"] is not None
    assert len(list((tmp_path / "out" / "sounds").iterdir())) == 1, "rows share their candidates"
    assert "candidates ranked by caption likelihood" in files[0].read_text(encoding="utf-8")
    assert "SPICE" in files[0].read_text(encoding="utf-8")


def test_every_caption_of_a_clip_is_made_into_sounds(
    tiny_folder: Path, captioned_data: Path, classifier_run: Path, captioner_run: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    wanted = config(
        captioned_data, classifier_run,
        bundles={"plain": str(tiny_folder)}, captioner=str(captioner_run),
        texts=None, samples=2, clips=None, resamples=20,
    )  # fmt: skip
    files = make_table(6, wanted, tmp_path)
    sounds = {path.stem for path in (tmp_path / "sounds").glob("*/*.wav")}
    assert sounds == {
        f"clip-{clip:02d}.t{text}.{n}" for clip in range(4) for text in range(3) for n in range(2)
    }
    shown = files[0].read_text(encoding="utf-8")
    assert "4 clips, 12 captions of them, 2 sounds for each: 24 sounds, 6 a clip" in shown
    assert "A quick look" in shown
    found = json.loads(files[2].read_text(encoding="utf-8"))["rows"]["plain"]
    for name in ("KL", "CIDEr", "scene graph"):
        assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    one = make_table(6, wanted.model_copy(update={"texts": 1}), tmp_path / "one")
    assert "4 clips, 4 captions of them" in one[0].read_text(encoding="utf-8")


def test_only_the_sources_asked_for(
    tiny_folder: Path, captioned_data: Path, classifier_run: Path, tmp_path: Path
) -> None:
    wanted = config(captioned_data, classifier_run, bundles={"plain": str(tiny_folder)}, clips=None)
    source = PreparedData.open(captioned_data).records[0].source
    make_table(6, wanted.model_copy(update={"sources": (source,)}), tmp_path / "a")
    with pytest.raises(DataError, match="no clip of elsewhere"):
        make_table(6, wanted.model_copy(update={"sources": ("elsewhere",)}), tmp_path / "b")


def test_foreign_bundles_are_named(
    tiny_folder: Path, sound_data: Path, classifier_run: Path, tmp_path: Path
) -> None:
    wanted = config(sound_data, classifier_run, bundles={"mu-0.8": str(tiny_folder)})
    with pytest.raises(ConfigError, match=r"no bundle 'mu-0.8'.*mu-0\.9"):
        make_table(4, wanted, tmp_path)
    with pytest.raises(InputError, match=r"only 2 to 8.*listen"):
        paper_table(1)


def test_strides_are_the_papers() -> None:
    """T = 25 with Δt = 7 of a chain of 100 is a stride of 28 and 4 evaluations, as ceil(25 / 7)."""
    rows = {row.id: row for row in paper_table(3).rows}
    for row in rows.values():
        if row.steps is None:
            assert row.stride_of(100) is None
            continue
        stride = row.stride_of(100)
        assert stride == row.stride * 100 // row.steps
        evaluations = len(timesteps_for(100, stride=stride)) - 1
        assert evaluations == math.ceil(row.steps / row.stride)
    assert rows["t25-s7"].stride_of(10) == 3  # of a shorter chain in proportion
    assert rows["t100-s1"].stride_of(10) == 1
    steps = {row.id: row for row in paper_table(5).rows}
    assert steps["50-25"].stride_of(50) == 2
    assert steps["25-25"].stride_of(25) == 1


def test_figures_printed_in_two_tables_agree() -> None:
    """The same model stands in several tables; a slip in copying them would show."""
    best = (9.76, 4.21, 0.103, 0.36)
    for number, name in (
        (2, "diffsound-audioset-clip"),
        (4, "mu-0.9"),
        (6, "plain"),
        (7, "diffsound-10"),
    ):
        assert {row.id: row.paper for row in paper_table(number).rows}[name] == best
    three = {row.id: row.paper for row in paper_table(3).rows}
    assert three["t100-s1"][:4] == best
    five = {row.id: row.paper[0] for row in paper_table(5).rows}
    assert [five[f"100-{n}"] for n in (25, 50, 100)] == [
        three[f"t{n}-s1"][0] for n in (25, 50, 100)
    ]


def test_unavailable_scores_are_named_in_the_table() -> None:
    table = paper_table(6)
    rows = {"plain": {"FID": Score("FID", None, "lower", note="needs 300 clips")}}
    text = markdown(6, table, rows, {"examples": 5, "texts": 5, "samples_per_text": 1})
    assert "not available (9.76)" in text
    assert "FID: needs 300 clips" in text
    assert "– (8.27)" in text
    assert "nan" not in as_csv(table, rows).lower()
