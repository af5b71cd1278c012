"""What a codec is made of: a backbone (encoder and decoder) around a quantizer."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from diffsound.config import MAX_LEVELS, MAX_STRIDE, Config, Count, Weight, Width

Stride = tuple[Count, Count]  # (frequency, time)
Depth = Annotated[int, Field(ge=0, le=256)]
Level = Annotated[int, Field(ge=0, lt=MAX_LEVELS)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]


class Conv2dConfig(Config):
    """The VQGAN encoder and decoder: the mel is an image, the defaults are the paper's.

    multipliers: width of each level as a multiple of `width`; level 0 has the full resolution.
    strides: what lies between one level and the next, so one fewer than multipliers.
    encoder_blocks, decoder_blocks: residual blocks per level.
    attention_levels: levels with self-attention after every residual block.
    """

    kind: Literal["conv2d"] = "conv2d"
    width: Width = 128
    multipliers: Annotated[tuple[Count, ...], Field(max_length=MAX_LEVELS)] = (1, 1, 2, 2, 4)
    strides: Annotated[tuple[Stride, ...], Field(max_length=MAX_LEVELS)] = ((2, 2),) * 4
    encoder_blocks: Count = 2
    decoder_blocks: Count = 3
    attention_levels: Annotated[tuple[Level, ...], Field(max_length=MAX_LEVELS)] = (4,)
    latent: Width = 256
    norm_groups: Count = 32

    @model_validator(mode="after")
    def _check(self) -> Conv2dConfig:
        if len(self.strides) != len(self.multipliers) - 1:
            raise ValueError(
                f"{len(self.multipliers)} multipliers need {len(self.multipliers) - 1} strides, "
                f"not {len(self.strides)}"
            )
        if any(not 0 <= level < len(self.multipliers) for level in self.attention_levels):
            raise ValueError(f"attention_levels must lie in 0..{len(self.multipliers) - 1}")
        if self.width % self.norm_groups:
            raise ValueError(
                f"width {self.width} is not a multiple of norm_groups {self.norm_groups}"
            )
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.width * multiplier for multiplier in self.multipliers)

    @property
    def time_stride(self) -> int:
        """Frames per column of the grid."""
        return prod(time for _, time in self.strides)

    @property
    def frequency_stride(self) -> int:
        """Mel bands per row of the latent."""
        return prod(frequency for frequency, _ in self.strides)


class LinearConfig(Config):
    """One linear map per column and one back; `principal.py` computes both from mels.

    time_stride: frames per column. latent: numbers per column.
    """

    kind: Literal["linear"] = "linear"
    time_stride: Count = 8
    latent: Width = 128


BackboneConfig = Annotated[Conv2dConfig | LinearConfig, Field(discriminator="kind")]


class FrameTextureConfig(Config):
    """A distribution of mels around the decoded one, drawn frame by frame: `frame_texture.py`.

    patch: frames per position of the network that reads the decoded mel.
    width, layers, kernel, expansion: its ConvNeXt blocks.
    hidden: width of the network that runs at every frame.
    past: number of frames before that it sees.
    memory: spans, in frames, over which it also knows the mean deviation of each band so far and
        how far bands strayed: a sound keeps its character for longer than a few frames.
    skewed: deviations may stray farther down than up, as the level of a noise does.
    mixtures: Gaussians per frame. rank: ways in which the bands of a Gaussian move together.
    fewest_rows: it learns to fill in mels decoded from this many of the first rows or more (a
        residual quantizer; with others it always gets all rows).
    text_dim: length of the pooled text that it is told, so that rain gets the grain of rain; None
        for a texture that knows nothing but the tokens.
    guidance: how far what the text changes is exaggerated when a texture is drawn (1: not at all).
        A text says little about a single frame and much about a whole sound.
    """

    patch: Count = 4
    width: Width = 384
    layers: Count = 6
    kernel: Count = 7
    expansion: Count = 3
    hidden: Width = 256
    past: Count = 6
    memory: Annotated[tuple[Count, ...], Field(max_length=MAX_LEVELS)] = ()
    skewed: bool = False
    mixtures: Count = 3
    rank: Count = 4
    fewest_rows: Count = 4
    text_dim: Width | None = None
    guidance: Weight = 1.0


# Options of earlier versions, as they were where nobody set them. They are part of the names of
# tokens (`model.bundle.codec_fingerprint`), which must not change.
RETIRED = {"normalise": False, "dropout": 0.0}


class QuantizerConfig(Config):
    """How a latent becomes tokens.

    layout: "shared"   every cell of the latent is looked up in one codebook (the paper);
            "per_row"  the same with one codebook for each row of the latent;
            "product"  a whole column is projected to `rows` parts, each with its own codebook;
            "residual" a whole column is coded in `rows` stages, each coding what is left.
    rows: rows of the grid for product and residual; the other layouts have the latent's own.
    code_dim: n_z, the length of a code; the latent is projected to it, so it may be small.
    update: "gradient" moves codes by the codebook term (eq. 3); "ema" sets them to the running
        mean of the latents they stand for, and moves codes nobody uses onto fresh latents.
    restart_threshold: a code is unused below this share of the even usage N/K (0: never).
    beam: residual only; how many ways to begin are kept from stage to stage outside training, so
        that a first code which leaves little to the others can win over the nearest one.
    """

    layout: Literal["shared", "per_row", "product", "residual"] = "shared"
    rows: Count | None = None
    codebook_size: Width = 256
    code_dim: Width = 256
    update: Literal["gradient", "ema"] = "gradient"
    decay: ShareBelowOne = 0.99
    restart_threshold: ShareBelowOne = 0.03
    codebook_weight: Weight = 1.0
    commitment_weight: Weight = 1.0
    beam: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _forget(cls, data: Any) -> Any:
        """Drop options of earlier versions where they were off."""
        if not isinstance(data, dict):
            return data
        return {key: data[key] for key in data if RETIRED.get(key, ...) != data[key]}

    @model_validator(mode="after")
    def _check(self) -> QuantizerConfig:
        by_column = self.layout in ("product", "residual")
        if by_column and self.rows is None:
            raise ValueError(f"the layout '{self.layout}' needs rows, the number of codes a column")
        if not by_column and self.rows is not None:
            raise ValueError(f"the layout '{self.layout}' has the latent's rows; leave rows out")
        if self.layout != "residual" and self.beam > 1:
            raise ValueError("beam is for the layout 'residual' only")
        return self


class CodecConfig(Config):
    """A codec; the defaults are the paper's (section III-B)."""

    n_mels: Annotated[int, Field(ge=1, le=512)] = 80
    backbone: BackboneConfig = Conv2dConfig()
    quantizer: QuantizerConfig = QuantizerConfig()
    texture: FrameTextureConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> CodecConfig:
        if self.time_stride > MAX_STRIDE:
            raise ValueError(
                f"the strides make {self.time_stride} frames a column; {MAX_STRIDE} at most"
            )
        if isinstance(self.backbone, Conv2dConfig) and self.n_mels % self.backbone.frequency_stride:
            raise ValueError(
                f"n_mels {self.n_mels} is not a multiple of the frequency stride "
                f"{self.backbone.frequency_stride}"
            )
        return self

    @property
    def time_stride(self) -> int:
        """Frames per column of the grid."""
        return self.backbone.time_stride

    @property
    def latent_rows(self) -> int:
        """Rows of the latent before quantizing."""
        if isinstance(self.backbone, Conv2dConfig):
            return self.n_mels // self.backbone.frequency_stride
        return 1

    @property
    def rows(self) -> int:
        """F', the rows of the token grid."""
        return self.quantizer.rows or self.latent_rows

    @property
    def rows_are_bands(self) -> bool:
        """Whether a row of the grid stands for a band of frequencies."""
        return self.quantizer.rows is None and self.latent_rows > 1

    @property
    def codebook_size(self) -> int:
        """K."""
        return self.quantizer.codebook_size

    @classmethod
    def paper(cls) -> CodecConfig:
        """Section III-B and VII-A: 80×848 → 5×53 tokens of 256, both codebook terms weigh 1."""
        return cls()

    @classmethod
    def official(cls) -> CodecConfig:
        """As `paper`, with the weights of the published code: its 0.25 is on the codebook term."""
        return cls(quantizer=QuantizerConfig(codebook_weight=0.25, commitment_weight=1.0))

    @classmethod
    def small(cls, n_mels: int = 80) -> CodecConfig:
        """The bundled model's: 16 frames a column, 8 residual codes of 512 each, cheap on a CPU."""
        return cls(
            n_mels=n_mels,
            backbone=LinearConfig(time_stride=16, latent=128),
            quantizer=QuantizerConfig(
                layout="residual",
                rows=8,
                codebook_size=512,
                code_dim=128,
                update="ema",
                commitment_weight=0.25,
                beam=8,
            ),
            texture=FrameTextureConfig(memory=(16, 64), skewed=True, fewest_rows=8, guidance=4.0),
        )

    @classmethod
    def tiny(cls, n_mels: int = 80) -> CodecConfig:
        """For tests: trains a step in milliseconds."""
        return cls(
            n_mels=n_mels,
            backbone=LinearConfig(time_stride=4, latent=24),
            quantizer=QuantizerConfig(
                layout="product",
                rows=4,
                codebook_size=16,
                code_dim=4,
                update="ema",
                commitment_weight=0.25,
            ),
        )


class DiscriminatorConfig(Config):
    """The patch discriminator; the defaults are the published ones.

    layers: convolutions of stride 2 (each doubles the width, up to 8 times).
    norm: "batch" as published; "group" does not mix the clips of a batch; "spectral" bounds the
        slope of every layer; "none" is the cheapest.
    """

    width: Width = 64
    layers: Count = 3
    norm: Literal["batch", "group", "spectral", "none"] = "batch"

    @classmethod
    def small(cls) -> DiscriminatorConfig:
        """A sixteenth of the published one's work, for training on a CPU."""
        return cls(width=16, norm="group")
