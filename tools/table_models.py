"""Train the decoders that the paper's tables 4, 5 and 6 compare, and make their bundles.

    python tools/table_models.py DATA --codec src/diffsound/assets/small --work runs/tables
    python tools/table_models.py DATA --codec runs/codec --set train.max_steps=9000

Every decoder is `configs/small/decoder.yaml` with what its row is about, and with SMALLER on top: a
quarter of the bundled model's arithmetic and a fraction of its steps, so that all thirteen take an
hour of one core. --set replaces that. Started again, this does only what is missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from make_model import ROOT, Step, run_steps

SMALLER = (
    "decoder.layers=4", "decoder.heads=3", "decoder.width=192",
    "train.max_steps=900", "train.lr=1.2e-3", "train.warmup_steps=100", "train.ema_decay=0.99",
    "train.validate_steps=450", "train.log=none", "samples.clips=0",
)  # fmt: skip
MASK_RATES = ("0.1", "0.3", "0.5", "0.7", "0.9")
SCENES = 600


@dataclass(frozen=True)
class Model:
    """A decoder of a table. begin: the model whose weights it starts from."""

    name: str
    settings: tuple[str, ...] = ()
    begin: str | None = None
    config: str = "decoder"

    @property
    def pretraining(self) -> bool:
        """Whether it is only a start for others, on scenes with texts made of labels."""
        return self.config == "pretrain"


MODELS = (
    Model("m"),  # also table 5's trained-100 and table 6's plain
    Model("u", ("decoder.schedule.transition=uniform",)),
    *(
        Model(
            f"mu-{rate}",
            ("decoder.schedule.transition=mask_uniform", f"decoder.schedule.gamma_end={rate}"),
        )
        for rate in MASK_RATES
    ),
    Model("trained-25", ("decoder.timesteps=25",)),
    Model("trained-50", ("decoder.timesteps=50",)),
    Model("pretrain", ("curriculum=null", "train.max_epochs=15"), config="pretrain"),
    Model("pretrain-c", ("train.max_epochs=15",), config="pretrain"),
    Model("pretrained", begin="pretrain"),
    Model("curriculum", begin="pretrain-c"),
)


def recipe(data: Path, codec: Path, work: Path, settings: Sequence[str]) -> Iterator[Step]:
    """Scenes to pre-train on, then every decoder and its bundle."""
    scenes = work / "scenes"
    mix = ("data", "mix", str(data), "--out", str(scenes), "--count", str(SCENES))
    yield Step("scenes", (*mix, "--seconds", "7.5"), scenes / "index.json")
    for model in MODELS:
        chosen = [f"codec={codec}", *SMALLER, *settings, *model.settings]
        if model.begin is not None:
            chosen.append(f"init={work / model.begin}")
        run = work / model.name
        source = scenes if model.pretraining else data
        config = ROOT / "configs" / "small" / f"{model.config}.yaml"
        places = ("--config", str(config), "--data", str(source), "--run", str(run))
        overrides = [part for value in chosen for part in ("--set", value)]
        bundle = work / "bundles" / model.name
        done = None if model.pretraining else bundle / "config.json"
        yield Step(model.name, ("train", "decoder", *places, *overrides), done)
        if not model.pretraining:
            parts = ("--codec", str(codec), "--decoder", str(run))
            sampling = ("--default", "guidance_scale=2.5", "--default", "truncation=0.8")
            command = ("bundle", "build", str(bundle), *parts, *sampling)
            yield Step(f"{model.name}'s bundle", command, done)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a folder of `data prepare`")
    parser.add_argument("--codec", type=Path, required=True, help="a codec's run, or a bundle")
    parser.add_argument("--work", type=Path, default=Path("runs/tables"))
    parser.add_argument("--set", action="append", default=[], help="for every decoder")
    given = parser.parse_args(arguments)
    for place in (given.data, given.codec):
        if not place.exists():
            parser.error(f"there is nothing at {place}")
    given.work.mkdir(parents=True, exist_ok=True)
    return run_steps(recipe(given.data, given.codec, given.work.absolute(), given.set))


if __name__ == "__main__":
    sys.exit(main())
