"""What tests share: a tiny bundle with random weights, and the pipeline over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diffsound.bundle import Bundle
from diffsound.codec.config import CodecConfig
from diffsound.coverage import Coverage
from diffsound.decoder.config import ARConfig
from diffsound.pipeline import TextToSound
from support import KNOWN_CAPTIONS, TEXT_DIM, make_bundle, tiny_diffsound
from text_fixtures import bert_folder, clip_folder  # noqa: F401


@pytest.fixture(scope="session")
def tiny_bundle() -> Bundle:
    return make_bundle(tiny_diffsound())


@pytest.fixture(scope="session")
def knowing(tiny_bundle: Bundle) -> Bundle:
    """The tiny bundle with the captions it was, as it were, trained on."""
    pooled = tiny_bundle.text_encoder(KNOWN_CAPTIONS).pooled
    return replace(tiny_bundle, coverage=Coverage.choose(KNOWN_CAPTIONS, pooled))


@pytest.fixture(scope="session")
def tiny_ar_bundle() -> Bundle:
    codec = CodecConfig.tiny()
    return make_bundle(ARConfig.tiny(codec.rows, codec.codebook_size, TEXT_DIM))


@pytest.fixture(scope="session")
def tiny_folder(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle on disk; read only."""
    return tiny_bundle.save_pretrained(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def pipeline(tiny_bundle: Bundle) -> TextToSound:
    return TextToSound(tiny_bundle)
