"""The audio captioning transformer (section VI-B): a sound in, a sentence about it out.

    captioner = load_captioner("runs/captioner")
    captioner.caption(mel)                            # ["a dog barks"]
    captioner.log_likelihood(mel, ["a dog barks"])    # how well the words fit the sound

The paper compares the sentence with the prompt. The likelihood of the prompt itself needs no search
and ranks candidates in one pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from diffsound.audio.mel import MelConfig
from diffsound.config import Config, Count, Width
from diffsound.decoder.layers import CrossAttention, FeedForward, SelfAttention, merge_heads
from diffsound.errors import DataError, InputError
from diffsound.judges import load_exported
from diffsound.judges.captioner_encoder import AudioEncoder, EncoderConfig, PatchConfig
from diffsound.text.ptb import ptb_words


@dataclass(frozen=True)
class Hypotheses:
    """The sentences found for each item, best first.

    numbers: int64 [B, beams, S], from the first number to the end mark, then filled with it.
    scores:  [B, beams] sum of log-probabilities / length ** length_penalty, the end mark counted;
             -inf where there are fewer sentences than beams.
    """

    numbers: Tensor
    scores: Tensor


def beam_search(
    model: _Sentences,
    batch: int,
    *,
    start: int,
    end: int,
    beams: int = 4,
    longest: int = 30,
    length_penalty: float = 0.7,
) -> Hypotheses:
    """The best sentences of at most `longest` numbers, the end mark not counted.

    model: has `batch` rows, nothing said yet.
    length_penalty: 0 compares sums, which favours short sentences; 1 compares means.
    """
    if beams < 1 or longest < 1:
        raise InputError("a beam search needs at least one beam and one word")
    log_probs = model.step(torch.full((batch,), start))
    device, vocabulary = log_probs.device, log_probs.shape[-1]
    items = torch.arange(batch, device=device)[:, None]  # [B, 1]
    # One live row per item at first: equal rows would fill the beam with one sentence.
    sums = log_probs.new_zeros(batch, 1)
    said = torch.empty(batch, 1, 0, dtype=torch.int64, device=device)
    done = Hypotheses(
        torch.full((batch, beams, longest + 1), end, device=device),
        log_probs.new_full((batch, beams), -torch.inf),
    )
    for length in range(1, longest + 1):
        totals = sums[:, :, None] + log_probs.reshape(batch, -1, vocabulary)
        # A sentence may end here, whatever else could follow it.
        ended = totals[:, :, end] / length**length_penalty
        done = _best_of(done, said, ended, end)
        totals[:, :, end] = -torch.inf
        width = min(beams, totals[0].numel())
        sums, places = totals.flatten(1).topk(width)
        parents, numbers = places // vocabulary, places % vocabulary
        said = torch.cat((said[items, parents], numbers[:, :, None]), dim=-1)
        rows_each = totals.shape[1]
        model.keep((items * rows_each + parents).flatten())
        log_probs = model.step(numbers.flatten())
        # What is still running only loses; at best it loses nothing until the longest length.
        most = sums.amax(1) / (longest + 1) ** length_penalty
        if bool((done.scores[:, -1] >= most).all()):
            return done
    totals = sums + log_probs.reshape(batch, -1, vocabulary)[:, :, end]
    return _best_of(done, said, totals / (longest + 1) ** length_penalty, end)


def _best_of(done: Hypotheses, said: Tensor, scores: Tensor, end: int) -> Hypotheses:
    """Join ended sentences said [B, n, S], scores [B, n] to those done; keep as many as before."""
    room = done.numbers.shape[-1]
    filled = torch.nn.functional.pad(said, (0, room - said.shape[-1]), value=end)
    numbers = torch.cat((done.numbers, filled), dim=1)
    best, places = torch.cat((done.scores, scores), dim=1).topk(done.scores.shape[1])
    return Hypotheses(numbers.gather(1, places[:, :, None].expand(-1, -1, room)), best)


PAD, START, END, UNKNOWN = range(4)
SPECIAL = 4  # the first number that is a word


class CaptionTokenizer:
    """The words of the training captions, numbered; every other word is UNKNOWN."""

    def __init__(self, words: Sequence[str]) -> None:
        if not words or len(set(words)) != len(words):
            raise DataError("a caption tokenizer needs words, each of them once")
        self.words = tuple(words)
        self._numbers = {word: SPECIAL + place for place, word in enumerate(self.words)}

    @classmethod
    def build(cls, captions: Iterable[str], min_count: int = 1) -> CaptionTokenizer:
        """The words said at least `min_count` times in `captions`, the commonest first."""
        counts = Counter(word for caption in captions for word in ptb_words(caption))
        common = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(common, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        """How many numbers there are, the special ones included."""
        return SPECIAL + len(self.words)

    def encode(self, caption: str) -> list[int]:
        """The numbers of a caption's words, without start and end."""
        return [self._numbers.get(word, UNKNOWN) for word in ptb_words(caption)]

    def batch(self, captions: Sequence[str], longest: int) -> Tensor:
        """Captions from START to END, padded: int64 [B, S]; of a longer one `longest` words."""
        rows = [[START, *self.encode(caption)[:longest], END] for caption in captions]
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    def decode(self, numbers: Iterable[int]) -> str:
        """The words before the first END; special numbers are left out."""
        words: list[str] = []
        for number in numbers:
            if number == END:
                break
            if number >= SPECIAL:
                words.append(self.words[number - SPECIAL])
        return " ".join(words)


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
    def caption(self, mel: Tensor, *, beams: int = 4) -> list[str]:
        """A sentence for every sound of mel [B, n_mels, L]."""
        sentences, longest = _Sentences(self, self.hear(mel)), self.config.words.longest
        found = beam_search(sentences, len(mel), start=START, end=END, beams=beams, longest=longest)
        return [self.tokenizer.decode(row) for row in found.numbers[:, 0].tolist()]

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
    """Sentences on their way, one per row, with the keys and values of their words kept."""

    def __init__(self, captioner: Captioner, memory: Tensor) -> None:
        self.captioner = captioner
        self.heard = captioner.project(memory)
        self.past: list[tuple[Tensor, Tensor] | None] = [None] * len(captioner.blocks)
        self.length = 0
        self.device = memory.device

    def step(self, numbers: Tensor) -> Tensor:
        """The next number of every row, int64 [N], to log-probabilities of the one after it [N, V];
        -inf for what must not be said."""
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
        """Continue with these rows only, int64 [M], in this order; a row may be named again."""
        rows = rows.to(self.device)
        self.heard = [(k[rows], v[rows]) for k, v in self.heard]
        self.past = [None if kv is None else (kv[0][rows], kv[1][rows]) for kv in self.past]


def load_captioner(folder: str | Path) -> Captioner:
    """The captioner of a run, of its export, or of a bundle's folder; in eval mode."""
    return load_exported(
        folder, "captioner", CaptionerExport, lambda of: Captioner(of.captioner, of.words, of.mel)
    )
