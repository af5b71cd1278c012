"""Settings every training stage shares; a stage adds its own groups beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffsound.config import Config

if TYPE_CHECKING:
    from diffsound.data.shards import PreparedData

Betas = tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
Share = Annotated[float, Field(ge=0, le=1)]


class TrainConfig(Config):
    """How long, how fast and how carefully to train.

    A run ends at the first of max_steps, max_epochs and max_minutes; the learning rate's schedule
    runs over the same span. With max_minutes alone the schedule follows the clock, so only runs
    limited by steps or epochs repeat bit for bit.

    batch_size: clips per process and per micro-step; a step sees batch_size × accumulation ×
        processes of them.
    lr_per_clip: the learning rate is lr × processes × batch_size (the paper's VQ-VAE recipe).
    final_lr: where cosine and linear schedules end, as a share of lr.
    clip: largest gradient norm; None leaves gradients alone.
    ema_decay: of the averaged weights that are validated and exported; None uses the last ones.
    validate_first: also before the first step, so that a fine-tuning that only makes things worse
        hands on what it started from.
    patience: validations without improvement before stopping; None never stops early.
    export: which weights the run hands on. Adversarial stages want "last": their texture gets
        better while the pixel distance that picks "best" gets worse.
    nan_limit: steps with a loss or gradient that is not finite before the run gives up.
    """

    seed: int = 0
    batch_size: PositiveInt = 16
    accumulation: PositiveInt = 1
    max_steps: PositiveInt | None = None
    max_epochs: PositiveInt | None = None
    max_minutes: PositiveFloat | None = None
    lr: PositiveFloat = 3e-4
    lr_per_clip: bool = False
    betas: Betas = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    final_lr: Share = 0.02
    clip: PositiveFloat | None = 1.0
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = 0.999
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    checkpoint_steps: PositiveInt | None = None
    checkpoint_minutes: PositiveFloat | None = 10.0
    keep_last: PositiveInt = 2
    validate_steps: PositiveInt | None = 500
    validate_epochs: PositiveInt | None = None
    validate_first: bool = False
    patience: PositiveInt | None = None
    export: Literal["best", "last"] = "best"
    log_steps: PositiveInt = 20
    nan_limit: PositiveInt = 10
    tensorboard: bool = True

    @model_validator(mode="after")
    def _ends(self) -> TrainConfig:
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("give at least one of max_steps, max_epochs and max_minutes")
        return self


class DataConfig(Config):
    """Which clips of a prepared folder are seen, and how they are read.

    balance: 0 draws every clip alike, 1 every class alike, between them a compromise.
    cache: keep decoded waves in memory, so that training never waits for the disk.
    """

    train_split: str = "train"
    valid_split: str = "valid"
    licences: tuple[str, ...] | None = None
    balance: Share = 0.0
    workers: Annotated[int, Field(ge=0)] = 0
    cache: bool = True


class RunConfig(Config):
    """A whole run: a stage's config file is one of these with the stage's own groups added.

    init: a run of the same stage whose weights this one starts from.
    """

    stage: str
    init: str | None = None
    train: TrainConfig
    data: DataConfig = DataConfig()

    def folders(self) -> tuple[str, ...]:
        """Prepared folders the run learns from besides the one given with --data."""
        return ()

    def completed(self, data: PreparedData) -> Self:
        """The config with what the data decides filled in, as it is saved with the run."""
        return self


# What a resumed run may change: how long it goes on and how it is watched, never what it computes.
# The span of a schedule is among them, since "train a little longer" is the commonest wish.
FREE_ON_RESUME = frozenset(
    f"train.{key}"
    for key in (
        "max_steps",
        "max_epochs",
        "max_minutes",
        "checkpoint_steps",
        "checkpoint_minutes",
        "keep_last",
        "validate_steps",
        "validate_epochs",
        "patience",
        "log_steps",
        "nan_limit",
        "tensorboard",
    )
) | {
    "data.workers",
    "data.cache",
    # What is only looked at and listened to.
    "vocoder",
    "samples",
    "samples.clips",
    "samples.guidance_scale",
    "samples.num_inference_steps",
}
