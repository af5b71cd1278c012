"""`make paper`: the whole repetition at tiny size, and that its plan is whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cli_support import typed
from diffsound.config import load_config
from diffsound.evaluation.paper_tables import paper_table
from diffsound.evaluation.tables import TableConfig
from diffsound.training.runs import STAGE_CLASSES
from paper_page import write_page
from repeat_paper import (
    BUNDLES,
    BY_NAME,
    MODELS,
    ROOT,
    SCALES,
    TABLES,
    Plan,
    Scale,
    main,
    plan_text,
    recipe,
    repeat,
    table_config,
)

RATE = 22050
FEW = ("train.max_minutes=null", "train.max_steps=2", "train.log=none", "train.batch_size=2")
SMALL = ("decoder.layers=1", "decoder.width=32", "decoder.heads=2", "decoder.codebook_size=16")
SHORT = ("decoder.timesteps=6",)
TINY = Scale(
    "tiny",
    settings={
        "codec": (
            *FEW, "loss.adversarial.start_steps=1", "codec.backbone.latent=8", "frames=32",
            "codec.quantizer.code_dim=8", "codec.quantizer.codebook_size=16", "valid_clips=2",
        ),
        "vocoder": (*FEW, "vocoder.base=4", "vocoder.residual_layers=1", "valid_clips=2"),
        "decoder": (*FEW, *SMALL, "valid_clips=2"),
        "diffsound": SHORT,
        "pretrain": (
            *FEW, *SMALL, *SHORT, "valid_clips=2", "train.max_steps=null",
        ),
    },
    scenes=8,
    n=1,
    common={"clips": 3, "texts": 2, "seconds": 0.5, "resamples": 10, "allow_few": True},
    tables={7: {"texts": 1, "samples": 5}},
    note="Tiny models",
)  # fmt: skip


@pytest.fixture
def recordings(record: Callable[[int, str, str], Path]) -> Path:
    """Two kinds of short sounds, two captions each."""
    row = "{name}-{number}.wav,a {name} sounds,{name} number {number},{name},{split}"
    return record(14, "file,caption_1,caption_2,label,split", row)


def test_from_recordings_to_the_page(
    recordings: Path, classifier_run: Path, captioner_run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Algorithm 3's rows, ranked candidates and both figures; stopped once, then continued."""
    monkeypatch.setenv("PATH", "")  # without Java words are split in this process, and faster
    judges = {"classifier": str(classifier_run), "captioner": str(captioner_run)}
    plan = Plan(recordings, tmp_path / "work", replace(TINY, judges=judges), tables=(6, 7))
    page = tmp_path / "docs" / "page.md"
    asked: list[str] = []

    def stopped(arguments: Sequence[str]) -> int:
        return 130 if tuple(arguments[:2]) == ("bundle", "build") else typed(*arguments)

    assert repeat(plan, page, stopped, asked.append) == 130
    assert not page.exists()
    write_page(plan, page)
    text = page.read_text(encoding="utf-8")
    assert text.count("**Tiny models.** Not measured yet.") == 2
    assert "| codec | " in text
    assert "| pretrained | " not in text
    codec = plan.work / "codec" / "export" / "model.safetensors"
    stamp = codec.stat().st_mtime_ns
    assert repeat(plan, page, lambda words: typed(*words), asked.append) == 0
    assert codec.stat().st_mtime_ns == stamp

    text = page.read_text(encoding="utf-8")
    for heading in (
        "# The paper repeated",
        "## Table 6",
        "## Table 7",
        "## Figure 3",
        "## Figure 4",
    ):
        assert f"\n{heading}" in f"\n{text}"
    assert "Not measured yet" not in text
    assert "rows are measured" not in text
    assert text.count("**Tiny models.** **A quick look**, 3 clips") == 2
    assert "3 clips, 6 captions of them, 1 sound for each: 6 sounds, 2 a clip" in text
    assert "5 sounds for each" in text
    assert "candidates ranked by scene graph + CIDEr" in text
    assert len(re.findall(r"^- KL: the order \w+", text, flags=re.M)) == 2
    assert len(re.findall(r"^\| (?:AR|Diffsound) \| \d+ \| \d", text, flags=re.M)) == 6
    assert len(re.findall(r"^\| (?:yes|no) \| (?:yes|no) \| \d", text, flags=re.M)) == 3
    for number in (3, 4):
        assert (page.parent / "results" / f"paper-figure-{number}.png").stat().st_size


def whole(**changes: object) -> Plan:
    """The full plan of recordings that need not be there."""
    places = {"bert": Path("BERT"), "clip": None, "captioned": ("esc50",)}
    values = {"source": Path("recordings"), "work": Path("work"), "scale": SCALES["full"]}
    return Plan(**(values | places | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", TABLES)
def test_every_row_of_every_table_has_its_bundle(number: int) -> None:
    assert set(BUNDLES[number]) == set(paper_table(number).models)
    assert set(BUNDLES[number].values()) <= set(BY_NAME)
    for scale in SCALES.values():
        config = TableConfig.model_validate(table_config(replace(whole(), scale=scale), number))
        assert set(config.bundles) == set(paper_table(number).models)


def test_the_protocol_is_the_papers() -> None:
    for number in TABLES:
        config = TableConfig.model_validate(table_config(whole(), number))
        assert (config.clips or 0) >= 300  # FID needs more clips than the classifier has features
        assert config.ranker == "caption"
        assert config.sampling == {}
        if number in (2, 7):
            assert (config.texts or 0) * (config.samples or 0) == 10


@pytest.mark.parametrize("scale", SCALES)
def test_every_training_command_is_one_that_its_stage_takes(scale: str, tmp_path: Path) -> None:
    plan = whole(work=tmp_path, scale=SCALES[scale])
    trained, bundled = set(), set()
    for step in recipe(plan):
        words = list(step.command)
        if words[0] == "train":
            overrides = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
            config = load_config(
                STAGE_CLASSES[words[1]][0], Path(words[words.index("--config") + 1]), overrides
            )
            assert config.init is None or Path(config.init) in trained
            trained.add(Path(words[words.index("--run") + 1]))
        elif words[:2] == ["bundle", "build"]:
            for part in ("--codec", "--decoder", "--vocoder"):
                place = Path(words[words.index(part) + 1])
                assert place in trained or (place / "config.json").exists()
            bundled.add(words[2])
        elif words[:2] == ["evaluate", "table"]:
            assert set(table_config(plan, int(words[2]))["bundles"].values()) <= bundled
    assert {path.name for path in trained} >= {m.name for m in MODELS if m.decoder is None}
    assert not any(tmp_path.iterdir())  # nothing is written by making a plan


def test_the_repeated_method_is_the_papers() -> None:
    """Whatever is not a size or a duration is as in configs/paper."""
    for name in ("diffsound", "ar", "pretrain"):
        ours, paper = (
            yaml.safe_load((ROOT / "configs" / folder / f"{name}.yaml").read_text("utf-8"))
            for folder in ("repeat", "paper")
        )
        sizes = {"layers", "heads", "width", "columns", "mlp_ratio"}
        assert {k: v for k, v in ours["decoder"].items() if k not in sizes} == {
            k: v for k, v in paper["decoder"].items() if k not in sizes
        }
        assert ours["train"]["betas"] == paper["train"]["betas"]
        assert ours["text_dropout"] == paper["text_dropout"] == 0.0
    before, after = (
        yaml.safe_load((ROOT / "configs" / "repeat" / f"{name}.yaml").read_text("utf-8"))["decoder"]
        for name in ("pretrain", "diffsound")
    )
    assert before == after


def test_a_table_follows_what_it_needs() -> None:
    """So that a run that is stopped has whole tables."""
    names = [step.name for step in recipe(whole(tables=(3, 4)))]
    assert names.index("table 3") < names.index("mu-0.5") < names.index("table 4")
    assert len(names) == len(set(names))


def test_without_bert_its_row_is_left_blank() -> None:
    plan = whole(bert=None)
    assert "ar-caps-bert" not in {model.name for model in plan.models()}
    assert "ar-caps-bert" not in plan.bundles(2)
    assert len(plan.bundles(2)) == 4


def test_only_what_some_tables_need() -> None:
    names = [model.name for model in whole(tables=(6,)).models()]
    assert names == ["diffsound", "pretrain", "pretrain-c", "pretrained", "curriculum"]


def test_the_plan_names_its_hours(tmp_path: Path) -> None:
    hours = yaml.safe_load((ROOT / "configs" / "repeat" / "hours.yaml").read_text("utf-8"))
    lines = plan_text(whole(work=tmp_path), hours).splitlines()
    assert lines[-1].split()[:2] == ["in", "all"]
    assert 6 < float(lines[-1].split()[2]) < 16
    for line in lines[:-1]:
        assert float(line.split()[-2]) > 0 or "bundle" in line


def test_the_hours_are_only_told_of_the_scale_they_are_known_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for scale, told in (("full", True), ("short", False), ("quick", False)):
        assert main([str(tmp_path), "--scale", scale, "--plan"]) == 0
        shown = capsys.readouterr().out
        assert "table 8" in shown
        assert (" h\n" in shown) == told


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "page.md"
    work = ("--work", str(tmp_path / "work"), "--page", str(page))
    assert main([str(tmp_path), *work, "--scale", "short", "--so-far"]) == 0
    text = page.read_text(encoding="utf-8")
    note = f"**{SCALES['short'].note}.** Not measured yet."
    assert text.count(note) == len(TABLES)
    assert "Not drawn yet." in text


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "nowhere")])
    assert ended.value.code == 2
