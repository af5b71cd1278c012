"""Settings that all training stages share; each stage adds its own groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from diffsound.config import Config

if TYPE_CHECKING:
    from diffsound.data.shards import PreparedData

Betas = tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
Share = Annotated[float, Field(ge=0, le=1)]


STAGES = {
    "codec": "Train the VQ-VAE: mel to tokens and back.",
    "vocoder": "Train a vocoder on real mels or on the reconstructions of a trained codec.",
    "decoder": "Train a token decoder, AR or Diffsound, on a codec's tokens and encoded texts.",
    "classifier": "Train the classifier behind FID, KL and the other metrics.",
    "captioner": "Train the captioner that scores word by word how well a sound fits a text.",
    "matcher": "Train the matcher that chooses among takes: sounds and texts in one space.",
}


class TrainConfig(Config):
    """How long, how fast and how carefully to train.

    A run ends at the first of max_steps, max_epochs and max_minutes, and the learning rate's
    schedule spans the same time. With max_minutes the schedule follows the clock, so only runs
    limited by steps or epochs are reproducible bit for bit.

    batch_size: clips per process and micro-step; a step sees batch_size × accumulation × processes.
    lr_per_clip: the learning rate is lr × processes × batch_size (the paper's VQ-VAE recipe).
    final_lr: where cosine and linear schedules end, as a share of lr.
    clip: largest gradient norm; None does not clip.
    ema_decay: of the averaged weights, which are validated and exported; None uses the last ones.
    shard: divide weights, gradients, moments and the average over the processes (FSDP), for a
        decoder that does not fit in one device's memory.
    validate_first: also validate before the first step, so that fine-tuning that only makes things
        worse exports the weights it started from.
    patience: validations without improvement before stopping; None never stops early.
    export: which weights the run exports. Adversarial stages want "last": their texture improves
        while the pixel distance that picks "best" gets worse.
    log: where figures go besides RUN/log.jsonl: a tracker of Accelerate's, or none.
    nan_limit: steps whose loss or gradient is not finite before the run gives up.
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
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    shard: bool = False
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
    log: Literal["tensorboard", "wandb", "mlflow", "none"] = "tensorboard"

    @model_validator(mode="after")
    def _ends(self) -> TrainConfig:
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("give at least one of max_steps, max_epochs and max_minutes")
        return self


class DataConfig(Config):
    """Which clips of a prepared folder are seen, and how they are read.

    sources: only clips of these sources; None takes all.
    subset: the share of the training clips that is used, drawn at random by `subset_seed`. A clip
        is in it or not whatever other clips there are, and a larger share holds a smaller one.
    balance: 0 draws clips evenly, 1 draws classes evenly; values between are a compromise.
    favour: factor by which the clips of a data set are drawn more or less often, by its name.
    cache: keep decoded waves in memory, so that training never waits for the disk.
    """

    train_split: str = "train"
    valid_split: str = "valid"
    licences: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    subset: Annotated[float, Field(gt=0, le=1)] = 1.0
    subset_seed: int = 0
    balance: Share = 0.0
    favour: dict[str, PositiveFloat] = Field(default_factory=dict)
    workers: Annotated[int, Field(ge=0)] = 0
    cache: bool = True


class RunConfig(Config):
    """A whole run; a stage's config adds its own groups.

    init: a run of the same stage (or a bundle) whose weights this one starts from.
    """

    stage: str
    init: str | None = None
    train: TrainConfig
    data: DataConfig = DataConfig()

    def folders(self) -> tuple[str, ...]:
        """Prepared folders the run learns from besides --data."""
        return ()

    def completed(self, data: PreparedData) -> Self:
        """The config with everything the data determines filled in, as saved with the run."""
        return self


# What may change when a run is resumed: how long it trains and how it is watched, not what it
# computes. The schedule's span is included, since "train a little longer" is a common wish.
FREE_ON_RESUME = frozenset(
    f"train.{key}"
    for key in (
        "max_steps", "max_epochs", "max_minutes", "checkpoint_steps", "checkpoint_minutes",
        "keep_last", "validate_steps", "validate_epochs", "patience", "log_steps", "nan_limit",
        "log", "tensorboard",  # what `log` was once called
    )
) | {
    "data.workers", "data.cache",
    "frame_window",  # of a classifier; it never changed what is trained
    # Only for samples.
    "vocoder", "samples", "samples.clips", "samples.guidance_scale", "samples.num_inference_steps",
}  # fmt: skip

# Settings that earlier versions had and this one has not, with the value that changes nothing.
RETIRED = {
    "augment.speed_probability": 0.5,
    "augment.mix_snr_db": [0.0, 15.0],
    "codec_share": 1.0,
}
