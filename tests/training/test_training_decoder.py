"""The decoder stage end to end at tiny size: tokens and text made, both decoders trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffsound.codec.codec import Codec
from diffsound.codec.config import CodecConfig
from diffsound.codec.quantizer import ResidualQuantizer
from diffsound.config import load_config
from diffsound.data.loaders import EpochLoader
from diffsound.data.shards import PreparedData
from diffsound.decoder import build_decoder
from diffsound.decoder.config import DiffsoundConfig
from diffsound.decoder.layers import codes_of
from diffsound.errors import BundleError, ConfigError, DataError
from diffsound.model.bundle import Bundle
from diffsound.text.features import TextFeatures
from diffsound.training.assemble import build, load_codec
from diffsound.training.decoder import DecoderRun, DecoderStage
from diffsound.training.run_files import read_log
from diffsound.training.runs import train
from diffsound.training.stage import Process
from diffsound.training.tokens import TokenDataConfig, drop_text, mixed_sampler
from diffsound.weights import load_export

TINY = Path(__file__).parents[2] / "configs" / "tiny"


def run_tiny(name: str, data: Path, run: Path, *overrides: str) -> str:
    stage = "codec" if name == "codec" else "decoder"
    settings = ["train.log=none", *overrides]
    return train(stage, TINY / f"{name}.yaml", data, run, settings, quiet=True)


@pytest.fixture(scope="module")
def decoder(prepared: Path, tiny_codec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("decoder") / "run"
    assert (
        run_tiny("decoder", prepared, run, f"codec={tiny_codec}", "vocoder=griffin_lim")
        == "finished"
    )
    return run


@pytest.mark.parametrize("name", ["decoder", "ar"])
def test_token_vectors_can_start_from_the_codec_codes(
    name: str, prepared: Path, tmp_path: Path
) -> None:
    residual = "codec.quantizer={layout: residual, rows: 3, codebook_size: 16, code_dim: 6}"
    run_tiny("codec", prepared, tmp_path / "codec", residual, "train.max_steps=2")
    settings = (f"codec={tmp_path / 'codec'}", "codes=codec", "train.max_steps=1", "train.lr=1e-9")
    column = ("decoder.position=column", "decoder.code_width=6", "train.export=last")
    run_tiny(name, prepared, tmp_path / "run", *settings, *column)
    state = load_export(tmp_path / "run")[2]
    codec = load_codec(tmp_path / "codec")[0]
    assert isinstance(codec.quantizer, ResidualQuantizer)
    books = torch.cat([book.codes for book in codec.quantizer.books()])
    table = state["transformer.codes.codes.weight"].view(3, 17, 6)
    torch.testing.assert_close(table[:, :16], codes_of(books, 6), atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="code_width"):
        run_tiny(name, prepared, tmp_path / "other", *settings, "decoder.position=column")


def test_training_improves_and_exports_a_decoder(decoder: Path) -> None:
    """The sizes that the config leaves out are those of the data."""
    log = read_log(decoder)
    losses = [entry["loss"] for entry in log if entry["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.2
    kind, config, state = load_export(decoder)
    assert kind == "decoder"
    assert config["decoder"]["text_dim"] == 384
    assert (config["decoder"]["rows"], config["decoder"]["codebook_size"]) == (4, 16)
    build_decoder(DiffsoundConfig.model_validate(config["decoder"])).load_state_dict(state)


def test_samples_hold_pictures_and_sounds(decoder: Path) -> None:
    folder = decoder / "samples" / "step-00000008"
    assert sorted(path.suffix for path in folder.iterdir()) == [".png", ".wav", ".wav"]


def test_runs_can_be_built_into_a_bundle(decoder: Path, tiny_codec: Path, tmp_path: Path) -> None:
    out = tmp_path / "my-model"
    made = build(
        out, tiny_codec, decoder, "griffin_lim", defaults=["guidance_scale=3", "duration=1"]
    )
    bundle = Bundle.from_pretrained(out)
    assert bundle.config.name == "my-model"
    assert bundle.config.defaults.guidance_scale == 3
    assert bundle.config.decoder.codec_fingerprint == bundle.codec_fingerprint
    for name, tensor in made.decoder.state_dict().items():
        torch.testing.assert_close(bundle.decoder.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_bundle_with_another_codec_is_refused(
    decoder: Path, prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    run_tiny("codec", prepared, tmp_path / "other", "train.max_steps=1")
    with pytest.raises(BundleError, match="was trained with codec"):
        build(tmp_path / "out", tmp_path / "other", decoder, "griffin_lim")
    with pytest.raises(BundleError, match="holds a codec, not a decoder"):
        build(tmp_path / "out", tiny_codec, tiny_codec, "griffin_lim")
    assert not (tmp_path / "out").exists()


def test_resuming_with_another_codec_is_refused(
    decoder: Path, prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    run_tiny("codec", prepared, other, "train.max_steps=1")
    tokens = load_export(decoder)[1]["codec_fingerprint"]
    with pytest.raises(DataError, match="the run uses the tokens of codec"):
        run_tiny("decoder", prepared, tmp_path / "run", f"codec={other}", f"tokens={tokens}")
    with pytest.raises(DataError, match=r"decoder\.rows is 7.* has 4"):
        run_tiny("decoder", prepared, tmp_path / "run", f"codec={tiny_codec}", "decoder.rows=7")
    with pytest.raises(DataError, match="the run uses the text features of encoder"):
        run_tiny("decoder", prepared, tmp_path / "run", f"codec={tiny_codec}", "text=0123abcd")


def test_a_run_can_start_from_another(
    decoder: Path, prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    """Fine-tuning starts at the weights of the pre-trained run."""
    run = tmp_path / "run"
    still = ("train.lr=1e-30", "train.ema_decay=null", "train.max_steps=1", "samples.clips=0")
    run_tiny("decoder", prepared, run, f"init={decoder}", f"codec={tiny_codec}", *still)
    before, after = load_export(decoder)[2], load_export(run)[2]
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-12)


def test_ar_stops_early_without_improvement(
    prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = ("train.lr=1e-30", "train.validate_steps=1", "train.ema_decay=null")
    assert run_tiny("ar", prepared, run, f"codec={tiny_codec}", *settings) == "early"
    scores = [entry["loss"] for entry in read_log(run) if entry["kind"] == "valid"]
    assert len(scores) == 3  # the first, and two that are no better
    assert scores[0] == pytest.approx(scores[-1])


def test_label_texts_follow_the_curriculum(
    prepared: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    """Masked texts of labels; then clips with several labels, of which this data has none."""
    run = tmp_path / "run"
    overrides = (
        f"codec={tiny_codec}",
        "labels={masks: [1, 2]}",
        "samples.clips=0",
        "train.max_steps=2",
    )
    assert run_tiny("decoder", prepared, run, *overrides) == "finished"
    assert all(np.isfinite(entry["loss"]) for entry in read_log(run))
    with pytest.raises(DataError, match="curriculum needs clips with several labels"):
        run_tiny("decoder", prepared, tmp_path / "other", *overrides, "curriculum={n: 1}")


def label_stage(data: Path, codec: Path, *overrides: str) -> DecoderStage:
    given = (f"codec={codec}", "labels={masks: [1, 2]}", "train.batch_size=2", *overrides)
    prepared = PreparedData.open(data)
    config = load_config(DecoderRun, TINY / "decoder.yaml", given).completed(prepared)
    return DecoderStage(config, prepared, Process())


def test_a_text_made_of_labels_has_all_of_them(several: Path, tiny_codec: Path) -> None:
    """Section IV-C: what the network is told, not only what the sampler counts."""
    stage = label_stage(several, tiny_codec)
    records = {record.id: record.labels for record in PreparedData.open(several).records}
    seen = set()
    for batch in stage.loader.batches(0):
        for clip, text in zip(batch["id"], batch["text"], strict=True):
            words = [word for word in text.split() if word != "[MASK]"]
            assert words == [label.lower() for label in records[clip]]
            seen.add(len(words))
    assert seen == {1, 3}


def test_training_follows_algorithm_3(several: Path, tiny_codec: Path) -> None:
    """n epochs of clips with one event, then 2n of those with several, and nothing else."""
    stage = label_stage(several, tiny_codec, "curriculum={n: 2}")
    single = {f"clip-{number:02d}" for number in range(12) if number % 3}
    multiple = {f"clip-{number:02d}" for number in range(12) if number % 3 == 0}
    for epoch in range(6):
        clips = [clip for batch in stage.loader.batches(epoch) for clip in batch["id"]]
        assert len(clips) == len(set(clips))
        assert set(clips) == (single if epoch < 2 else multiple)


def test_training_runs_through_the_curriculum(
    several: Path, tiny_codec: Path, tmp_path: Path
) -> None:
    settings = ("labels={masks: [1, 2]}", "curriculum={n: 1}", "train.batch_size=2")
    ends = ("train.max_steps=null", "train.max_epochs=3", "train.log_steps=1", "samples.clips=0")
    run = tmp_path / "run"
    ended = run_tiny("decoder", several, run, f"codec={tiny_codec}", *settings, *ends)
    assert ended == "finished"
    # 8 clips with one label once, 4 with several twice, two a step.
    steps = [entry["step"] for entry in read_log(run) if entry["kind"] == "train"]
    assert max(steps) == 4 + 2 * 2


@pytest.mark.parametrize(
    ("override", "closeness"),
    [
        ("gradient_checkpointing=true", 1e-5),
        ("train.precision=bf16", 0.05),
    ],
)
def test_checkpointing_and_precision_give_the_same_losses(
    decoder: Path, prepared: Path, tiny_codec: Path, tmp_path: Path, override: str, closeness: float
) -> None:
    """Less memory or lower precision gives the same loss curve, up to rounding."""
    run = tmp_path / "run"
    chosen = (f"codec={tiny_codec}", "samples.clips=0", override)
    run_tiny("decoder", prepared, run, *chosen)
    curves = [
        [entry["loss"] for entry in read_log(folder) if entry["kind"] == "train"]
        for folder in (decoder, run)
    ]
    assert curves[1] == pytest.approx(curves[0], rel=closeness)
    if closeness > 1e-3:
        assert curves[1] != curves[0]


def test_compiled_blocks_give_the_same_losses(
    decoder: Path,
    prepared: Path,
    tiny_codec: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traced for real; only the generation of C++, which takes a minute, is left out."""
    compile_ = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda m: compile_(m, backend="aot_eager"))
    run = tmp_path / "run"
    chosen = (f"codec={tiny_codec}", "samples.clips=0", "train.compile=true", "train.max_steps=2")
    run_tiny("decoder", prepared, run, *chosen, "train.schedule=constant")
    plain = next(entry["loss"] for entry in read_log(decoder))
    assert next(entry["loss"] for entry in read_log(run)) == pytest.approx(plain, rel=1e-4)
    _, config, state = load_export(run)
    build_decoder(DiffsoundConfig.model_validate(config["decoder"])).load_state_dict(state)


def test_an_unsupported_precision_is_refused(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old_gpu(**_: object) -> None:
        raise ValueError("bf16 mixed precision requires a supported device.")

    monkeypatch.setattr("diffsound.training.engine.Accelerator", old_gpu)
    with pytest.raises(ConfigError, match=r"train\.precision=bf16 is not possible: bf16 mixed"):
        run_tiny("codec", prepared, tmp_path / "run", "train.precision=bf16")


def test_bf16_is_refused_on_a_processor_that_crashes_with_it(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr("diffsound.training.engine._PRODUCT", dies)
    with pytest.raises(ConfigError, match=r"bf16 is not possible: .* use fp32"):
        run_tiny("codec", prepared, tmp_path / "run", "train.precision=bf16")


def stage_of(prepared: Path, tiny_codec: Path, **changes: object) -> DecoderStage:
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    config = load_config(DecoderRun, TINY / "decoder.yaml", [f"codec={tiny_codec}", *overrides])
    data = PreparedData.open(prepared)
    return DecoderStage(config.completed(data), data, Process())


def test_short_grids_are_padded_with_silence(prepared: Path, tiny_codec: Path) -> None:
    """A padded grid has the clip's own tokens, then those of silence."""
    stage = stage_of(
        prepared,
        tiny_codec,
        grids={"widths": [20, 40], "fill": "silence"},
        **{"train.batch_size": 2},
    )
    loader = stage.loader
    assert isinstance(loader, EpochLoader)
    data = PreparedData.open(prepared)
    tokens = data.tokens(stage.config.tokens)
    silence = stage.ladder.silence
    assert silence is not None
    seen = 0
    for batch in loader.batches(0):
        for grid, name in zip(batch["tokens"], batch["id"], strict=True):
            variants = tokens.of(data.position(name)).astype(np.int64)
            width = variants.shape[-1]
            rung = 20 if width <= 20 else 40
            assert grid.shape == (4, rung)
            assert any((grid[:, :width].numpy() == variant).all() for variant in variants)
            assert (grid[:, width:].numpy() == silence[:, None]).all()
            seen += 1
    assert seen >= 10


def test_a_share_of_short_sounds_is_padded_to_wider_rungs(prepared: Path, tiny_codec: Path) -> None:
    grids = {"widths": [20, 40, 60], "fill": "silence", "wider": 0.5, "wider_below": 18}
    stage = stage_of(prepared, tiny_codec, grids=grids)
    dataset = stage.loader._loader.dataset.dataset  # type: ignore[attr-defined]
    drawn: dict[int, set[int]] = {}
    for epoch in range(20):
        for index in stage.loader.sampler.epoch_items(epoch):  # type: ignore[attr-defined]
            clip = int(index) // len(dataset.widths)
            drawn.setdefault(clip, set()).add(dataset.width(int(index)))
    for clip, widths in drawn.items():
        natural = dataset.widths[dataset.natural[clip]]
        expected = {20, 40, 60} if dataset.lengths[clip] <= 18 else {natural}
        assert widths == expected
    assert {len(widths) for widths in drawn.values()} == {1, 3}


def test_a_share_of_long_sounds_is_cut_to_narrower_rungs(prepared: Path, tiny_codec: Path) -> None:
    grids = {"widths": [6, 12, 20, 40], "fill": "silence", "narrower": 0.5, "narrower_to": 12}
    stage = stage_of(prepared, tiny_codec, grids=grids)
    dataset = stage.loader._loader.dataset.dataset  # type: ignore[attr-defined]
    cut = 0
    for epoch in range(20):
        for index in stage.loader.sampler.epoch_items(epoch):  # type: ignore[attr-defined]
            clip, width = int(index) // len(dataset.widths), dataset.width(int(index))
            natural = dataset.widths[dataset.natural[clip]]
            assert width == natural or 12 <= width < natural
            cut += width < natural
            grid = dataset.item(int(index), np.random.default_rng(epoch))["tokens"]
            assert grid.shape[-1] == width
    assert cut > 0


def test_continuous_sounds_are_repeated_instead_of_padded(prepared: Path, tiny_codec: Path) -> None:
    grids = {"widths": [6, 12, 20, 60], "fill": "silence", "loop_from": 18, "longer": 0.5}
    stage = stage_of(prepared, tiny_codec, grids=grids)
    dataset = stage.loader._loader.dataset.dataset  # type: ignore[attr-defined]
    silence = dataset.ladder.silence
    seen = {True: 0, False: 0}
    for clip, length in enumerate(dataset.lengths):
        loops = length >= 18
        natural = dataset.widths[dataset.natural[clip]]
        assert (natural <= length) if loops else (natural >= length)
        index = clip * len(dataset.widths) + dataset.widths.index(60)
        grid = dataset.item(index, np.random.default_rng(clip))["tokens"]
        ends_silent = (grid[:, -8:] == silence[:, None]).all()
        assert ends_silent or loops
        if loops:
            assert (grid[:, : 60 - (length - 1)] == grid[:, length - 1 :]).all()
        seen[loops] += 1
    assert all(seen.values())
    items = np.concatenate([stage.loader.sampler.epoch_items(epoch) for epoch in range(20)])  # type: ignore[attr-defined]
    rungs, clips = items % len(dataset.widths), items // len(dataset.widths)
    wider = rungs > np.asarray(dataset.natural)[clips]
    loops = np.asarray(dataset.lengths)[clips] >= 18
    assert not wider[~loops].any()
    assert 0.3 < wider[loops].mean() < 0.7


def test_a_favoured_data_set_is_drawn_more_often(prepared: Path, tiny_codec: Path) -> None:
    stage = stage_of(prepared, tiny_codec, **{"grids": {"widths": [12]}})
    dataset = stage.loader._loader.dataset.dataset  # type: ignore[attr-defined]
    record = dataset.record(0)
    dataset.record = lambda clip: replace(record, source="loved" if clip < 3 else "others")
    sampler = mixed_sampler(dataset, TokenDataConfig(favour={"loved": 3.0}), 0)
    drawn = np.concatenate([sampler.epoch_items(epoch) for epoch in range(40)])
    others = len(dataset.clips) - 3
    assert (drawn < 3).mean() == pytest.approx(9 / (9 + others), abs=0.03)
    with pytest.raises(DataError, match="nobody"):
        mixed_sampler(dataset, TokenDataConfig(favour={"nobody": 2.0}), 0)


def test_folders_are_mixed_in_the_configured_shares(prepared: Path, tiny_codec: Path) -> None:
    mix = [{"path": str(prepared), "share": 0.25}]
    stage = stage_of(prepared, tiny_codec, **{"data.mix": mix, "grids": {"widths": [12]}})
    dataset = stage.loader._loader.dataset.dataset  # type: ignore[attr-defined]
    items = stage.loader.sampler.epoch_items(3)  # type: ignore[attr-defined]
    parts = [dataset.clips[int(index) // len(dataset.widths)][0] for index in items]
    assert (parts.count(0), parts.count(1)) == (12, 4)


def test_dropped_texts_become_the_empty_text() -> None:
    text = TextFeatures(torch.ones(1000, 2, 3), torch.ones(1000, 2).bool(), torch.ones(1000, 3))
    empty = TextFeatures(torch.full((1, 4, 3), 7.0), torch.ones(1, 4).bool(), torch.zeros(1, 3))
    made = drop_text(text, empty, 0.1, torch.Generator().manual_seed(0))
    dropped = made.pooled[:, 0] == 0
    assert 70 < int(dropped.sum()) < 130
    assert bool((made.features[dropped] == 7).all())
    assert made.mask.sum(1)[dropped].unique().tolist() == [4]
    assert made.mask.sum(1)[~dropped].unique().tolist() == [2]
    assert bool((made.features[~dropped, :2] == 1).all())


def test_contradictory_settings_are_refused() -> None:
    def load(*overrides: str) -> None:
        load_config(DecoderRun, TINY / "decoder.yaml", overrides)

    with pytest.raises(ConfigError, match="needs the codec's run"):
        load("grids={widths: [8], fill: silence}")
    with pytest.raises(ConfigError, match="widths must rise"):
        load("grids={widths: [8, 4]}")
    with pytest.raises(ConfigError, match="sum to less than 1"):
        load("data.mix=[{path: a, share: 0.6}, {path: b, share: 0.5}]")
    with pytest.raises(ConfigError, match="its own order"):
        load("curriculum={n: 1}", "data.balance=0.5")


def test_silence_tokens_decode_to_silence() -> None:
    from diffsound.audio.mel import MelConfig, MelFrontEnd
    from diffsound.training.tokens import silent_column

    torch.manual_seed(0)
    codec = Codec(CodecConfig.tiny())
    codec(torch.rand(8, codec.n_mels, 64))  # places the codes
    codec.eval()
    front_end = MelFrontEnd(MelConfig(n_mels=codec.n_mels))
    column = silent_column(codec, front_end)
    long = codec.encode(front_end(torch.zeros(1, 100 * codec.time_stride * 256)))[0]
    assert (long[:, 20:80].numpy() == column[:, None]).all()
