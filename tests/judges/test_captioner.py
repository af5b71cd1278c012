"""The captioner's network: what it hears and says, with and without its cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diffsound.errors import BundleError, InputError
from diffsound.judges.captioner import (
    END,
    PAD,
    START,
    UNKNOWN,
    Captioner,
    CaptionerConfig,
    WordsConfig,
    _Sentences,
    beam_search,
    load_captioner,
)
from diffsound.judges.captioner_encoder import ConvConfig, PatchConfig, sinusoids
from diffsound.weights import write_export

VOCABULARY = ["a", "dog", "barks", "cat", "meows", "loudly"]
CONV = ConvConfig(widths=(4, 6), time_stages=2, width=16, layers=1, heads=2, shift=5)
PATCH = PatchConfig(frames=4, width=16, layers=1, heads=2)


def make(encoder: ConvConfig | PatchConfig = CONV, seed: int = 0) -> Captioner:
    torch.manual_seed(seed)
    words = WordsConfig(width=16, layers=2, heads=2, longest=6)
    config = CaptionerConfig(n_mels=20, encoder=encoder, words=words)
    captioner = Captioner(config, VOCABULARY)
    for block in captioner.blocks:  # let what is heard matter before any training
        nn.init.normal_(block.cross.out.weight, std=0.5)
    return captioner.eval()


@pytest.mark.parametrize(("encoder", "stride"), [(CONV, 4), (PATCH, 4)])
@pytest.mark.parametrize("frames", [1, 3, 4, 37])
def test_hears_sounds_of_any_length(encoder: ConvConfig, stride: int, frames: int) -> None:
    heard = make(encoder).hear(torch.rand(2, 20, frames))
    assert heard.shape == (2, -(-frames // stride), 16)
    assert heard.isfinite().all()


def test_a_patch_is_its_frames_and_nothing_else() -> None:
    stem = make(PATCH).encoder.stem
    mel = torch.rand(1, 20, 12)
    changed = mel.clone()
    changed[:, 7, 5] += 1
    differs = (stem(mel) != stem(changed)).any(-1)[0]
    assert differs.tolist() == [False, True, False]
    by_hand = stem.project(mel[0, :, 4:8].flatten())
    torch.testing.assert_close(stem(mel)[0, 1], by_hand)


@pytest.mark.parametrize("shape", [(2, 19, 8), (20, 8), (1, 20, 0)])
def test_a_mel_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\[B, 20, frames\]"):
        make().hear(torch.zeros(shape))


def test_positions_are_distinct_and_bounded() -> None:
    table = sinusoids(300, 16, torch.zeros(()))
    assert table.abs().max() <= 1
    assert len({tuple(row) for row in table.tolist()}) == 300


def test_positions_begin_anywhere_in_training_only() -> None:
    captioner = make()
    captioner.encoder.dropout = 0.0
    for block in captioner.encoder.blocks:
        block.dropout = 0.0
    mel = torch.rand(2, 20, 16)
    assert torch.equal(captioner.hear(mel), captioner.hear(mel))
    captioner.encoder.training = True
    heard = [captioner.hear(mel) for _ in range(12)]
    assert any(not torch.allclose(heard[0], other) for other in heard)


def test_a_words_logits_ignore_later_words() -> None:
    captioner, mel = make(), torch.rand(1, 20, 16)
    logits = captioner(mel, torch.tensor([[START, 4, 5, 6]]))
    other = captioner(mel, torch.tensor([[START, 4, 7, 8]]))
    torch.testing.assert_close(logits[:, :2], other[:, :2])
    assert not torch.allclose(logits[:, 2:], other[:, 2:])


def test_step_by_step_is_the_same_as_all_at_once() -> None:
    captioner = make()
    memory = captioner.hear(torch.rand(3, 20, 16))
    numbers = torch.tensor([[START, 4, 5, 6], [START, 5, 5, 9], [START, 8, 7, 6]])
    whole = captioner.read(memory, numbers)
    whole[..., [PAD, START, UNKNOWN]] = -torch.inf
    sentences = _Sentences(captioner, memory)
    for place in range(4):
        stepped = sentences.step(numbers[:, place])
        torch.testing.assert_close(stepped, whole[:, place].log_softmax(-1))
        if place == 1:  # rows may change places between words
            order = torch.tensor([2, 0, 1])
            sentences.keep(order)
            numbers, whole = numbers[order], whole[order]


def test_the_best_caption_is_the_likeliest_of_those_found() -> None:
    captioner, mel = make(), torch.rand(2, 20, 16)
    found = beam_search(
        _Sentences(captioner, captioner.hear(mel)), 2, start=START, end=END, beams=3, longest=6
    )
    said = captioner.caption(mel, beams=3)
    for item in range(2):
        assert said[item] == captioner.tokenizer.decode(found.numbers[item, 0].tolist())


def test_captions_do_not_depend_on_their_batch() -> None:
    captioner, mel = make(seed=3), torch.rand(4, 20, 24)
    together = captioner.caption(mel)
    assert together == [captioner.caption(one[None])[0] for one in mel]


def test_likelihood_is_the_mean_over_words_and_end() -> None:
    captioner, mel = make(), torch.rand(2, 20, 16)
    texts = ["A dog barks!", "cat"]
    found = captioner.log_likelihood(mel, texts)
    for item, numbers in enumerate([[4, 5, 6, END], [7, END]]):
        logits = captioner(mel[item : item + 1], torch.tensor([[START, *numbers[:-1]]]))
        each = logits.log_softmax(-1)[0, range(len(numbers)), numbers]
        torch.testing.assert_close(found[item], each.mean())


def test_unknown_words_are_passed_over_but_heard_as_context() -> None:
    captioner, mel = make(), torch.rand(1, 20, 16)
    found = captioner.log_likelihood(mel, ["a zebra barks"])
    logits = captioner(mel, torch.tensor([[START, 4, UNKNOWN, 6]]))
    each = logits.log_softmax(-1)[0, range(4), [4, UNKNOWN, 6, END]]
    torch.testing.assert_close(found[0], each[[0, 2, 3]].mean())
    assert captioner.log_likelihood(mel, ["zebra"]).isfinite().all()
    assert captioner.log_likelihood(mel, [""]).isfinite().all()


def test_a_long_text_is_judged_by_its_beginning() -> None:
    captioner, mel = make(), torch.rand(1, 20, 16)
    long = "a dog barks loudly " * 10
    assert torch.equal(
        captioner.log_likelihood(mel, [long]),
        captioner.log_likelihood(mel, ["a dog barks loudly a dog"]),
    )


def test_deaf_items_do_not_depend_on_the_sound() -> None:
    captioner = make()
    numbers = torch.tensor([[START, 4, 5]] * 2)
    logits = captioner(torch.rand(2, 20, 16), numbers, torch.tensor([True, True]))
    torch.testing.assert_close(logits[0], logits[1])
    prior = captioner.log_likelihood(None, ["a dog"])
    each = logits[0].log_softmax(-1)[range(3), [4, 5, END]]
    torch.testing.assert_close(prior[0], each.mean())


def test_every_weight_learns() -> None:
    captioner = make().train()
    deaf = torch.tensor([False, True])
    logits = captioner(torch.rand(2, 20, 16), torch.tensor([[START, 4, 5]] * 2), deaf)
    logits.square().mean().backward()
    still = [name for name, p in captioner.named_parameters() if p.grad is None]
    assert not still


def test_every_sound_needs_its_own_text() -> None:
    with pytest.raises(InputError, match="2 sounds need as many texts, not 1"):
        make().log_likelihood(torch.rand(2, 20, 16), ["a dog"])


def test_a_captioner_survives_a_round_trip(tmp_path) -> None:
    captioner, mel = make(), torch.rand(2, 20, 16)
    config = captioner.export_config()
    write_export(tmp_path, "captioner", config, captioner.state_dict(), step=1, metrics={})
    again = load_captioner(tmp_path)
    texts = ["a dog barks", "a cat"]
    assert torch.equal(again.log_likelihood(mel, texts), captioner.log_likelihood(mel, texts))
    assert again.mel == captioner.mel
    write_export(tmp_path, "codec", config, captioner.state_dict(), step=1, metrics={})
    with pytest.raises(BundleError, match="holds a codec, not a captioner"):
        load_captioner(tmp_path)


def test_the_published_shape() -> None:
    with torch.device("meta"):
        captioner = Captioner(CaptionerConfig(), [f"word-{i}" for i in range(4000)])
    millions = sum(p.numel() for p in captioner.parameters()) / 1e6
    assert 100 < millions < 112  # ViT-Base's 85 M, a decoder of 17 M, 2 M of words
