"""What tests share: a tiny bundle with random weights, the pipeline over it, and a browser."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, sync_playwright

from diffsound.codec.config import CodecConfig
from diffsound.decoder.config import ARConfig
from diffsound.generation.pipeline import TextToSound
from diffsound.judges.captioner import Captioner, CaptionerConfig, WordsConfig
from diffsound.judges.captioner_encoder import PatchConfig
from diffsound.judges.classifier import Classifier, ClassifierConfig
from diffsound.judges.resnet import ResNetConfig
from diffsound.model.bundle import Bundle
from diffsound.model.coverage import Coverage
from diffsound.weights import write_export
from metric_support import MEL
from support import KNOWN_CAPTIONS, TEXT_DIM, make_bundle, tiny_diffsound
from text_fixtures import bert_folder, clip_folder  # noqa: F401

# Shells start background jobs with Ctrl-C ignored, and so would the processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some virtual machines promise matrix instructions that end the process (training/engine.py).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """Debian's Chromium if there is one, else the one Playwright installs, and Playwright's loop.

    The only place that starts Playwright: a process cannot run two of them at once. Its loop stays
    marked as this thread's running one, so that asyncio.run would fail in every later test: the
    mark is taken away here, and `browser` sets it for one test.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture
def browser(chromium: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """The shared browser; what a test opens in it is closed after the test."""
    browser, loop = chromium
    asyncio._set_running_loop(loop)
    yield browser
    for context in browser.contexts:
        context.close()
    asyncio._set_running_loop(None)


@pytest.fixture
def page(browser: Browser) -> Page:
    """A new page, in a context of its own."""
    page = browser.new_page()
    page.set_default_timeout(20_000)
    return page


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


@pytest.fixture(scope="session")
def captioner_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captioner with random weights as the export of a run."""
    config = CaptionerConfig(
        n_mels=MEL.n_mels,
        encoder=PatchConfig(width=16, layers=1, heads=2, frames=8),
        words=WordsConfig(width=16, layers=1, heads=2, longest=4),
    )
    words = ["a", "loud", "sound", "dog"]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        captioner = Captioner(config, words, MEL)
    run = tmp_path_factory.mktemp("captioner")
    content = captioner.export_config()
    write_export(run, "captioner", content, captioner.state_dict(), step=1, metrics={})
    return run


@pytest.fixture(scope="session")
def ranking_folder(
    tiny_bundle: Bundle, captioner_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny bundle with a captioner that chooses among candidates; read only."""
    folder = tmp_path_factory.mktemp("bundles") / "ranking"
    return replace(tiny_bundle, judges={"captioner": captioner_run}).save_pretrained(folder)


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    backbone = ResNetConfig(
        stem=4, widths=(8, 16), depths=(1, 1), strides=((2, 2), (2, 2)), feature_dim=12
    )
    config = ClassifierConfig(mel=MEL, labels=("dog", "rain", "bell"), backbone=backbone)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Classifier(config).eval()
        # Batch norms as after some training; a fresh one would make every block its shortcut.
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
                torch.nn.init.normal_(module.bias, std=0.1)
    return made


@pytest.fixture(scope="session")
def classifier_run(classifier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same classifier as the export of a run."""
    run = tmp_path_factory.mktemp("classifier")
    config = classifier.config.model_dump(mode="json")
    write_export(run, "classifier", config, classifier.state_dict(), step=1, metrics={})
    return run
