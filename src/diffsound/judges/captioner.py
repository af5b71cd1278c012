"""The audio captioning transformer (section VI-B): a sound in, a sentence about it out.

    captioner = load_captioner("runs/captioner")
    captioner.caption(mel)                            # ["a dog barks"]
    captioner.log_likelihood(mel, ["a dog barks"])    # how well the words fit the sound

Beside the paper's use (compare the sentence with the prompt) it says how likely the prompt itself
is, which needs no search and ranks candidates in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.config import Config, Count, Width, parse_config
from diffsound.decoder.layers import CrossAttention, FeedForward, SelfAttention, merge_heads
from diffsound.errors import InputError
from diffsound.judges.beam import beam_search, greedy_search
from diffsound.judges.caption_tokenizer import END, PAD, START, UNKNOWN, CaptionTokenizer
from diffsound.judges.captioner_encoder import AudioEncoder, EncoderConfig, PatchConfig


class WordsConfig(Config):
    """The text decoder; the defaults are the published ones. longest: words in a caption."""

    width: Width = 512
    layers: Count = 4
    heads: Count = 8
    longest: Count = 30


class CaptionerConfig(Config):
    """Every constant of the network; its words and its mel are kept beside it."""

    n_mels: Annotated[int, Field(ge=1, le=512)] = 80
    encoder: EncoderConfig = PatchConfig()
    words: WordsConfig = WordsConfig()
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1


class CaptionerExport(Config):
    """What a run's export says of a captioner."""

    captioner: CaptionerConfig
    mel: MelConfig
    words: Annotated[tuple[str, ...], Field(min_length=1, max_length=1_000_000)]


class WordBlock(nn.Module):
    """Pre-norm causal self-attention, attention to the sound, feed-forward."""

    def __init__(self, config: WordsConfig, memory: int, dropout: float) -> None:
        super().__init__()
        self.norm_self = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.norm_cross = nn.LayerNorm(config.width)
        self.cross = CrossAttention(config.width, config.heads, memory)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = FeedForward(config.width, 4, "gelu")
        self.dropout = dropout

    def forward(
        self, x: Tensor, heard: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [B, n, W] after `past` keys and values [B, H, m, d]; returns x and the longer past.

        heard: keys and values of the sound. Without a past the pass is causal; with one, n is 1.
        """
        q, k, v = self.attention.project(self.norm_self(x))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self._drop(self.attention.out(merge_heads(attended)))
        x = x + self._drop(self.cross(self.norm_cross(x), *heard, None))
        return x + self._drop(self.mlp(self.norm_mlp(x))), (k, v)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Captioner(nn.Module):
    """Encoder of a mel, decoder of words; knows the mel it was trained on and its words."""

    def __init__(
        self, config: CaptionerConfig, words: Sequence[str], mel: MelConfig | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.mel = mel or MelConfig(n_mels=config.n_mels)
        self.tokenizer = CaptionTokenizer(words)
        self.encoder = AudioEncoder(config.encoder, config.n_mels, config.dropout)
        width, memory = config.words.width, config.encoder.width
        # What is heard when nothing is: trained by leaving the sound out now and then, it makes
        # the decoder a plain language model, the prior that `log_likelihood` can be compared with.
        self.nothing = nn.Parameter(torch.randn(1, 1, memory))
        self.embedding = nn.Embedding(len(self.tokenizer), width, padding_idx=PAD)
        self.positions = nn.Embedding(config.words.longest + 1, width)
        self.blocks = nn.ModuleList(
            WordBlock(config.words, memory, config.dropout) for _ in range(config.words.layers)
        )
        self.norm = nn.LayerNorm(width)
        # The output layer is the embedding again, so its rows must be of a logit's size.
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        nn.init.normal_(self.positions.weight, std=width**-0.5)

    def hear(self, mel: Tensor) -> Tensor:
        """mel [B, n_mels, L] -> what the words are about, [B, N, W]."""
        if mel.ndim != 3 or mel.shape[1] != self.config.n_mels or mel.shape[2] < 1:
            raise InputError(
                f"the captioner takes mels [B, {self.config.n_mels}, frames], not {list(mel.shape)}"
            )
        return self.encoder(mel)

    def forward(self, mel: Tensor, numbers: Tensor, deaf: Tensor | None = None) -> Tensor:
        """Logits of the word after each: mel [B, n_mels, L], numbers [B, S] -> [B, S, V].

        deaf: bool [B], items that hear nothing.
        """
        memory = self.hear(mel)
        if deaf is not None:
            memory = torch.where(deaf[:, None, None], self.nothing.to(memory.dtype), memory)
        return self.read(memory, numbers)

    def read(self, memory: Tensor, numbers: Tensor) -> Tensor:
        """Logits [B, S, V] of the words after `numbers` [B, S], given what was heard."""
        x = self.embedding(numbers) + self.positions.weight[: numbers.shape[1]]
        for block, heard in zip(self.blocks, self.project(memory), strict=True):
            x, _ = block(x, heard, None)
        return self._logits(x)

    def project(self, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of what was heard, for every block; made once per sound."""
        blocks = cast("list[WordBlock]", list(self.blocks))
        return [block.cross.project_text(memory) for block in blocks]

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)

    @torch.inference_mode()
    def caption(self, mel: Tensor, *, beams: int = 4, length_penalty: float = 0.7) -> list[str]:
        """A sentence for every sound of mel [B, n_mels, L]; beams 1 is the greedy search."""
        sentences = _Sentences(self, self.hear(mel))
        longest = self.config.words.longest
        if beams == 1:
            found = greedy_search(sentences, len(mel), start=START, end=END, longest=longest)
        else:
            found = beam_search(
                sentences,
                len(mel),
                start=START,
                end=END,
                beams=beams,
                longest=longest,
                length_penalty=length_penalty,
            ).numbers[:, 0]
        return [self.tokenizer.decode(row) for row in found.tolist()]

    @torch.inference_mode()
    def log_likelihood(self, mel: Tensor | None, texts: Sequence[str]) -> Tensor:
        """Mean log-probability of a text's words and its end, for each sound its own text: [B].

        mel: [B, n_mels, L], or None for how likely the texts are when nothing is heard. Words the
        captioner does not know are passed over: it can say nothing about them.
        """
        if mel is None:
            return self.likelihood_of(self.nothing.expand(len(texts), -1, -1), texts)
        return self.likelihood_of(self.hear(mel), texts)

    @torch.inference_mode()
    def likelihood_of(self, memory: Tensor, texts: Sequence[str]) -> Tensor:
        """As `log_likelihood`, of sounds already heard, memory [B, N, W]."""
        if len(texts) != len(memory):
            raise InputError(f"{len(memory)} sounds need as many texts, not {len(texts)}")
        numbers = self.tokenizer.batch(texts, self.config.words.longest).to(memory.device)
        log_probs = self.read(memory, numbers[:, :-1]).float().log_softmax(-1)
        targets = numbers[:, 1:]
        found = log_probs.gather(-1, targets[..., None])[..., 0]
        counted = (targets != PAD) & (targets != UNKNOWN)
        return (found * counted).sum(1) / counted.sum(1)

    def export_config(self) -> dict[str, Any]:
        """Every constant needed to build the network again, as JSON."""
        return {
            "captioner": self.config.model_dump(mode="json"),
            "mel": self.mel.model_dump(mode="json"),
            "words": list(self.tokenizer.words),
        }


class _Sentences:
    """Sentences on their way, with the keys and values of their words kept (a `Decoding`)."""

    def __init__(self, captioner: Captioner, memory: Tensor) -> None:
        self.captioner = captioner
        self.heard = captioner.project(memory)
        self.past: list[tuple[Tensor, Tensor] | None] = [None] * len(captioner.blocks)
        self.length = 0
        self.device = memory.device

    def step(self, numbers: Tensor) -> Tensor:
        """numbers [N] -> log-probabilities of the next word [N, V]."""
        captioner = self.captioner
        x = captioner.embedding(numbers.to(self.device)[:, None])
        x = x + captioner.positions.weight[self.length]
        for place, block in enumerate(captioner.blocks):
            x, self.past[place] = block(x, self.heard[place], self.past[place])
        self.length += 1
        logits = captioner._logits(x)[:, 0].float()
        logits[:, [PAD, START, UNKNOWN]] = -torch.inf
        return logits.log_softmax(-1)

    def keep(self, rows: Tensor) -> None:
        rows = rows.to(self.device)
        self.heard = [(k[rows], v[rows]) for k, v in self.heard]
        self.past = [None if kv is None else (kv[0][rows], kv[1][rows]) for kv in self.past]


def load_captioner(run: str | Path) -> Captioner:
    """The captioner of a finished run (its folder, or its export folder), ready to listen."""
    from diffsound.weights import build_with, load_export_of

    config, state = load_export_of(run, "captioner")
    exported = parse_config(CaptionerExport, config, source=str(run))
    captioner = build_with(
        lambda: Captioner(exported.captioner, exported.words, exported.mel), state, str(run)
    )
    return captioner.eval().requires_grad_(False)
