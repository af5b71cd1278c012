"""Every constant of the two token decoders, and their presets.

`paper` follows the paper, `official` the published code where the two differ, `tiny` is for tests.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from diffsound.config import Config, Count, Weight, Width

Activation = Literal["gelu", "gelu2"]
Share = Annotated[float, Field(gt=0, le=1e6)]


class ScheduleConfig(Config):
    """The forward process (section IV-B; end values of section VII-A).

    kind: how the share of lost tokens grows: in even steps (the paper), as a "quarter" of a sine
        (few tokens are drawn at first, as by MaskGIT), or by the published code's rule.
    gamma_end: γ̄_T, the share of masked tokens at T; only "mask_uniform" has the choice.
    row_shares: None noises all rows alike (the paper). Else the rows are drawn one after another,
        each with its share of the chain (first row first, in any unit): for residual codecs, whose
        rows go from coarse to fine, so that the coarse ones can have most of the steps.
    turns: number of rows drawn together in each turn, coarse to fine; row_shares then has one share
        per turn. None: one row per turn.
    """

    kind: Literal["linear", "quarter", "official"] = "linear"
    transition: Literal["uniform", "mask", "mask_uniform"] = "mask_uniform"
    gamma_end: Annotated[float, Field(gt=0, lt=1)] = 0.9
    row_shares: Annotated[tuple[Share, ...], Field(max_length=256)] | None = None
    turns: Annotated[tuple[Count, ...], Field(max_length=256)] | None = None

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.turns is not None and len(self.row_shares or ()) != len(self.turns):
            raise ValueError(
                f"{len(self.turns)} turns need as many row_shares, not {len(self.row_shares or ())}"
            )
        if self.kind == "official" and self.transition != "mask_uniform":
            raise ValueError("the official schedule has the mask_uniform transition only")
        return self

    @model_validator(mode="before")
    @classmethod
    def _without_row_order(cls, data: Any) -> Any:
        """Older bundles and runs have a key that is gone; at 0 it meant nothing."""
        if isinstance(data, dict) and data.get("row_order") == 0:
            return {key: value for key, value in data.items() if key != "row_order"}
        return data


class LossConfig(Config):
    """What the denoiser learns from (eq. 22–25 and their published variants).

    variant: "vlb" is the paper's bound; "simplified" is the plain cross-entropy of x0,
        which has less variance and trains small models faster (no auxiliary term then).
    auxiliary: λ, the weight of L_x0 (1e-4 in the paper, 5e-4 in the published code).
    adaptive: weigh L_x0 by 1 + t/T, as published.
    importance: draw t by its loss history, as published; uniform otherwise.
    next_row: with rows in turn (row_shares), the weight of a row of the turn after the one being
        drawn; a step of a short chain draws some of it too. Rows further on are not asked about.
    """

    variant: Literal["vlb", "simplified"] = "vlb"
    auxiliary: Weight = 1e-4
    adaptive: bool = False
    importance: bool = False
    next_row: Weight = 0.25


class TransformerConfig(Config):
    """The size fields both decoders share.

    rows, columns: the grid the positions are learned on. Fewer columns use the first ones; more
        columns stretch the learned positions by linear interpolation.
    position: "cell" makes every cell a position of the sequence (the paper); "column" makes a
        whole column one position, its rows' embeddings summed, with one output head per row.
    code_width: with "column", codes live in this many dimensions and are projected to and from
        the width, which saves most of the parameters of many large codebooks; None: no projection.
    text_dim: width of the text features that come in.
    """

    layers: Count = 19
    heads: Count = 16
    width: Width = 1024
    mlp_ratio: Count = 4
    activation: Activation = "gelu"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    text_dim: Width = 512
    rows: Count = 5
    columns: Width = 53
    codebook_size: Annotated[int, Field(ge=2, le=65_536)] = 256
    position: Literal["cell", "column"] = "cell"
    code_width: Width | None = None

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.code_width is not None and self.position == "cell":
            raise ValueError("code_width needs position 'column'")
        return self

    @classmethod
    def tiny(cls, rows: int = 2, codebook_size: int = 8, text_dim: int = 16, **more: Any) -> Self:
        """For tests: a few thousand parameters."""
        grid: dict[str, Any] = {"rows": rows, "columns": 6, "codebook_size": codebook_size}
        return cls(layers=2, heads=2, width=32, text_dim=text_dim, **grid, **more)


class DiffsoundConfig(TransformerConfig):
    """The discrete-diffusion decoder (section IV).

    position_scheme: "grid" adds one vector per row and one per column; "official" is the published
        code's assignment, which mixes the two axes up but must be kept for its weights.
    attend_padding: attend to padded text positions as well, as the published code does.
    normalise_text: scale every text vector to length 1, as the published code does.
    pooled_text: add a projection of the pooled text vector to the timestep's conditioning.
    local: with position "column", the columns each block looks at directly, through a convolution
        before its feed-forward; a sound goes on much as it was, and attention alone is slow to
        find that out. 0: none, as in the paper.
    """

    kind: Literal["diffsound"] = "diffsound"
    activation: Activation = "gelu2"
    position_scheme: Literal["grid", "official"] = "grid"
    timesteps: Annotated[int, Field(ge=1, le=10_000)] = 100
    schedule: ScheduleConfig = ScheduleConfig()
    loss: LossConfig = LossConfig()
    attend_padding: bool = False
    normalise_text: bool = False
    pooled_text: bool = False
    local: Annotated[int, Field(ge=0, le=255)] = 0

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.local and (self.position == "cell" or self.local % 2 == 0):
            raise ValueError("local needs position 'column', and an odd number of columns")
        if self.position_scheme == "official" and self.position == "column":
            raise ValueError("position_scheme 'official' needs position 'cell'")
        shares, turns = self.schedule.row_shares, self.schedule.turns
        if shares is not None and self.loss.variant != "simplified":
            raise ValueError("rows one after another need loss.variant 'simplified'")
        if shares is not None and turns is None and len(shares) != self.rows:
            raise ValueError(f"schedule.row_shares has {len(shares)} shares for {self.rows} rows")
        if turns is not None and sum(turns) != self.rows:
            raise ValueError(f"schedule.turns has {sum(turns)} rows, the decoder {self.rows}")
        return self

    @classmethod
    def paper(cls) -> Self:
        """Section VII-A: 19 layers, 16 heads, 1024 wide, K 256, 5x53 tokens, T 100, CLIP."""
        return cls(normalise_text=True)

    @classmethod
    def official(cls) -> Self:
        """The published code: its schedule, loss, position scheme and unmasked text."""
        return cls(
            position_scheme="official",
            attend_padding=True,
            normalise_text=True,
            schedule=ScheduleConfig(kind="official"),
            loss=LossConfig(auxiliary=5e-4, adaptive=True, importance=True),
        )

    @classmethod
    def tiny(cls, rows: int = 2, codebook_size: int = 8, text_dim: int = 16, **more: Any) -> Self:
        return super().tiny(rows, codebook_size, text_dim, timesteps=10, **more)


class ARConfig(TransformerConfig):
    """The autoregressive decoder (section III-C).

    condition: "tokens" puts every text vector, through one dense layer, before the sequence;
        "pooled" only the pooled one, as the published code does.
    position_scheme: "grid" adds one vector per row and one per column; "official" has one per
        place in the sequence, the condition's included.
    """

    kind: Literal["ar"] = "ar"
    condition: Literal["tokens", "pooled"] = "tokens"
    position_scheme: Literal["grid", "official"] = "grid"
    normalise_text: bool = False

    @model_validator(mode="after")
    def _official_positions_are_cells(self) -> Self:
        if self.position_scheme == "official" and (
            self.position == "column" or self.condition == "tokens"
        ):
            raise ValueError(
                "position_scheme 'official' needs position 'cell' and condition 'pooled'"
            )
        return self

    @classmethod
    def paper(cls) -> Self:
        """Section VII-A: the size of Diffsound, text features through one dense layer."""
        return cls()

    @classmethod
    def official(cls) -> Self:
        """The published code: one projected sentence vector in front."""
        return cls(condition="pooled", position_scheme="official")


DecoderConfig = Annotated[DiffsoundConfig | ARConfig, Field(discriminator="kind")]
