"""Every source on small files of its own format."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from diffsound.data.published import esc50_credits
from diffsound.data.record import Record
from diffsound.data.sources import SOURCES, SourceOptions, SourceReport, guess_kind, open_source
from diffsound.errors import DataError, InputError

Read = Callable[..., tuple[list[Record], SourceReport]]


@pytest.fixture
def read() -> Read:
    def read_source(spec: str, **options: object) -> tuple[list[Record], SourceReport]:
        report = SourceReport()
        source = open_source(spec, SourceOptions(**options))  # type: ignore[arg-type]
        return list(source.records(report)), report

    return read_source


def write(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def audioset(tmp_path: Path) -> Path:
    write(
        tmp_path / "class_labels_indices.csv",
        'index,mid,display_name\n0,/m/09x0r,"Speech"\n'
        '1,/m/05zppz,"Male speech, man speaking"\n2,/m/068hy,"Domestic animals, pets"\n',
    )
    write(tmp_path / "ontology.json", json.dumps([{"id": "/m/0bt9lr", "name": "Dog"}]))
    write(
        tmp_path / "balanced_train_segments.csv",
        "# num_ytids=4\n# YTID, start_seconds, end_seconds, positive_labels\n"
        '--PJHxphWEs, 30.000, 40.000, "/m/09x0r,/m/05zppz"\n'
        "-0xaudioless, 0.000, 10.000, /m/09x0r\n"
        'abcdefghijk, 0.000, 10.000, "/m/0bt9lr,/m/nowhere"\n'
        'lmnopqrstuv, 5.000, 15.000, "/m/nowhere"\n'
        'badtimes___, x, 15.000, "/m/09x0r"\n',
    )
    write(
        tmp_path / "eval_segments.csv",
        "# YTID, start_seconds, end_seconds, positive_labels\n_evalclip__,20,30,/m/068hy\n",
    )
    for name in ("--PJHxphWEs.wav", "deep/er/Yabcdefghijk.flac", "_evalclip___20000_30000.mp3"):
        write(tmp_path / "audio" / name)
    return tmp_path


def test_audioset_segments_become_records_with_display_names(audioset: Path, read: Read) -> None:
    records, report = read(f"audioset:{audioset}")
    assert [(r.id, r.labels, r.split) for r in records] == [
        ("--PJHxphWEs_30", ("Speech", "Male speech, man speaking"), "train"),
        ("abcdefghijk_0", ("Dog",), "train"),
        ("_evalclip___20", ("Domestic animals, pets",), "test"),
    ]
    assert records[0].audio.start == 30
    assert records[0].audio.end == 40
    assert records[0].captions == ()
    assert records[2].group == "_evalclip__"
    assert report.skipped == [
        ("-0xaudioless_0", "missing: no audio file of this id"),
        ("lmnopqrstuv_5", "none of its labels is in the ontology"),
    ]
    assert "the label /m/nowhere of 2 segments is not in the ontology; skipped" in report.notes
    assert any("badtimes___" in note for note in report.notes)


def test_audioset_reports_what_is_missing(tmp_path: Path, read: Read) -> None:
    with pytest.raises(DataError, match="no AudioSet segment list"):
        read(f"audioset:{tmp_path}")
    write(tmp_path / "eval_segments.csv")
    with pytest.raises(DataError, match="neither ontology"):
        read(f"audioset:{tmp_path}")
    write(tmp_path / "ontology.json", '{"not": "a list"}')
    with pytest.raises(DataError, match="is not AudioSet's ontology"):
        read(f"audioset:{tmp_path}")


def test_audiocaps_gathers_captions(tmp_path: Path, read: Read) -> None:
    head = "audiocap_id,youtube_id,start_time,caption\n"
    write(tmp_path / "train.csv", head + '1,aaa,130,"A woman talks, as\nwater pours"\n2,bbb,x,no\n')
    rows = "".join(f"{i},ccc,20,caption {i % 4}\n" for i in range(5))
    write(tmp_path / "test.csv", head + rows + "9,ddd,0,gone\n8,ccc,20,\n")
    for name in ("aaa", "Yccc"):
        write(tmp_path / f"{name}.wav")
    records, report = read(str(tmp_path))
    assert [(r.id, r.split, r.captions) for r in records] == [
        ("aaa_130", "train", ("A woman talks, as water pours",)),
        # Metrics count references, so the repeated one stays.
        ("ccc_20", "test", (*(f"caption {i}" for i in range(4)), "caption 0")),
    ]
    assert report.skipped == [("ddd_0", "missing: no audio file of this id")]
    assert len(report.notes) == 3  # no val.csv, a start that is no number, an empty caption


ESC50_LICENCE = """\
# ESC-50: Dataset for Environmental Sound Classification

101 - Dog:
- [1-100032-A.ogg]: clip derived from rose_bark.wav (http://www.freesound.org/people/nfrae/sounds/100032/) by nfrae [CC0]
- [1-105224-A.ogg]:  clip derived from Dog (at night).wav (http://www.freesound.org/people/club%20sound/sounds/105224/) by club sound [CC-BY-NC]
- [4-188595-A.ogg]: clip derived from [Can[Norberd]](http://www.freesound.org/people/alex/sounds/188595/) by alex_audio [CC-BY]
- [9-1-A.ogg]: something else
"""  # noqa: E501 - the format's own long lines


def test_esc50_credits_are_read_from_its_licence_file(tmp_path: Path) -> None:
    report = SourceReport()
    credits = esc50_credits(write(tmp_path / "LICENSE", ESC50_LICENCE), report)
    assert credits["1-100032-A"] == {
        "title": "rose_bark.wav",
        "url": "http://www.freesound.org/people/nfrae/sounds/100032/",
        "author": "nfrae",
        "licence": "CC0",
    }
    assert credits["1-105224-A"]["title"] == "Dog (at night).wav"
    assert credits["4-188595-A"]["title"] == "[Can[Norberd]]"
    assert len(credits) == 3
    assert report.notes == ["LICENSE: this line is not understood: - [9-1-A.ogg]: something else"]


def test_esc50_folds_become_splits_and_recordings_groups(tmp_path: Path, read: Read) -> None:
    write(tmp_path / "LICENSE", ESC50_LICENCE)
    write(
        tmp_path / "meta/esc50.csv",
        "filename,fold,target,category,esc10,src_file,take\n"
        "1-100032-A-0.wav,1,0,dog,True,100032,A\n"
        "4-188595-A-29.wav,4,29,drinking_sipping,False,188595,A\n"
        "5-9032-A-0.wav,5,0,dog,True,9032,A\n"
        "1-47250-A-41.wav,1,41,chainsaw,False,47250,A\n",
    )
    for name in ("1-100032-A-0.wav", "4-188595-A-29.wav", "5-9032-A-0.wav"):
        write(tmp_path / "audio" / name)
    records, report = read(str(tmp_path))
    assert [(r.id, r.split, r.labels, r.licence, r.group) for r in records] == [
        ("1-100032-A-0", "train", ("dog",), "cc0", "esc50/100032"),
        ("4-188595-A-29", "valid", ("drinking sipping",), "cc-by", "esc50/188595"),
        ("5-9032-A-0", "test", ("dog",), "cc-by-nc", "esc50/9032"),
    ]
    assert records[1].tags == ("human", "drinking sipping")
    assert records[1].author == "alex_audio"
    assert report.skipped == [("1-47250-A-41", "missing: no audio file of this name")]


def test_clotho_rows_become_records_with_five_captions(tmp_path: Path, read: Read) -> None:
    columns = ",".join(f"caption_{i}" for i in range(1, 6))
    write(
        tmp_path / "clotho_captions_evaluation.csv",
        f'file_name,{columns}\nRain (1).wav,"It rains, hard",b,c,d,d\ngone.wav,a,b,c,d,e\n',
    )
    (tmp_path / "clotho_metadata_evaluation.csv").write_bytes(
        "file_name,keywords,sound_id,sound_link,start_end_samples,manufacturer,license\n"
        'Rain (1).wav,rain;storm,12,https://freesound.org/s/12,"[0, 9]",José,'
        "http://creativecommons.org/licenses/by/3.0/\n".encode("latin-1")
    )
    write(tmp_path / "development/Rain (1).wav")
    write(tmp_path / "evaluation/Rain (1).wav")
    ((record,), report) = read(f"clotho:{tmp_path}")
    assert record.id == "Rain_1"
    assert record.captions == ("It rains, hard", "b", "c", "d")
    assert (record.split, record.licence, record.author) == ("test", "cc-by", "José")
    assert record.tags == ("rain", "storm")
    assert record.audio.path.endswith("evaluation/Rain (1).wav")
    assert report.skipped == [("gone", "missing: no audio file of this name")]


def test_a_clotho_table_without_captions_is_refused(tmp_path: Path, read: Read) -> None:
    write(tmp_path / "my_captions.csv", "file_name,words\na.wav,x\n")
    write(tmp_path / "a.wav")
    with pytest.raises(DataError, match="no column 'caption_1'"):
        read(f"clotho:{tmp_path}")


def test_a_table_gives_a_folders_captions_labels_and_licences(tmp_path: Path, read: Read) -> None:
    for name in ("dogs/bark 01.wav", "dogs/bark_02.wav", "rain.flac"):
        write(tmp_path / name)
    write(
        tmp_path / "captions.csv",
        'file,caption,label,licence\ndogs/bark 01.wav,"a dog, barking",dog;animal,CC0\n'
        "dogs/bark 01.wav,woof,,\ngone.wav,never heard,,\n",
    )
    records, report = read(str(tmp_path), licence="cc-by", author="me")
    first, second, third = records
    assert first.captions == ("a dog, barking", "woof")
    assert first.labels == ("dog", "animal")
    assert (first.licence, second.licence) == ("cc0", "cc-by")
    assert second.captions == ("bark",)  # from its name
    assert second.labels == ("dogs",)  # from its folder
    assert first.group == second.group == "dogs/bark"  # takes of one recording
    assert (third.id, third.labels, third.author) == ("rain", (), "me")
    assert report.skipped == [("gone", "missing: the table names gone.wav")]


def test_captions_come_from_text_files_or_json_lines(tmp_path: Path, read: Read) -> None:
    write(tmp_path / "a/one.wav")
    write(tmp_path / "a/one.txt", "a door closes\n\nsomeone\tshuts a door\n")
    write(tmp_path / "b/one.ogg")
    rows = [{"file": "one.ogg", "captions": ["x", "y"], "split": "test", "tags": "p, q"}]
    table = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    records, _ = read(f"folder:{tmp_path}", captions=table)
    assert records[0].captions == ("a door closes", "someone shuts a door")
    assert records[1].captions == ("x", "y")
    assert (records[1].split, records[1].tags) == ("test", ("p", "q"))


def test_colliding_names_get_distinct_ids(tmp_path: Path, read: Read) -> None:
    for name in ("a b.wav", "a_b.wav", "a/b.wav"):
        write(tmp_path / name)
    records, _ = read(f"folder:{tmp_path}")
    assert len({r.id for r in records}) == 3
    assert [r.id for r in read(f"folder:{tmp_path}")[0]] == [r.id for r in records]


def test_groups_of_a_folder_stay_in_one_split(tmp_path: Path, read: Read) -> None:
    for group in range(40):
        for take in range(2):
            write(tmp_path / f"sound{chr(97 + group // 26)}{chr(97 + group % 26)}_{take}.wav")
    records, _ = read(f"folder:{tmp_path}", valid_share=0.3)
    splits = {r.group: {x.split for x in records if x.group == r.group} for r in records}
    assert len(splits) == 40
    assert all(len(names) == 1 for names in splits.values())
    assert 4 <= sum(names == {"valid"} for names in splits.values()) <= 20


def test_corpus_metadata_becomes_records(sounds: Path, read: Read) -> None:
    with (sounds / "metadata.csv").open("a") as table:
        table.write(
            "out,../../etc/passwd,,,,,,,,,\ngone,audio/gone.wav,,,,,,,,,\n,x.wav,,,,,,,,,\n"
        )
    records, report = read(str(sounds))
    assert len(records) == 7
    assert records[0].captions == ("a dog sound",)
    assert records[0].title == "dog, take 0"
    assert records[6].licence_stated == "CC0-1.0"
    assert [clip for clip, _ in report.skipped] == ["out", "gone"]
    assert "outside" in report.skipped[0][1]
    assert report.notes == ["metadata.csv: a row without an id; skipped"]


def test_the_kind_of_source_is_detected(tmp_path: Path, audioset: Path) -> None:
    assert guess_kind(audioset) == "audioset"
    for kind, file, content in (
        ("esc50", "esc50.csv", ""),
        ("clotho", "clotho_captions_development.csv", ""),
        ("audiocaps", "train.csv", "audiocap_id,youtube_id,start_time,caption\n"),
        ("corpus", "metadata.csv", '"id",file,x\n'),
        ("folder", "metadata.csv", "file_name,caption\n"),
    ):
        root = tmp_path / f"kind-{kind}"
        write(root / file, content)
        assert guess_kind(root) == kind


def test_unknown_kinds_and_missing_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown source 'audiosets'; known are: audiocaps"):
        open_source(f"audiosets:{tmp_path}")
    with pytest.raises(DataError, match="does not exist"):
        open_source(f"esc50:{tmp_path}/nowhere")
    assert set(SOURCES) == {"audioset", "audiocaps", "esc50", "clotho", "folder", "corpus"}
