"""The options of commands whose work can be spread over processes and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import PlainProgress, Progress

if TYPE_CHECKING:
    from mocoda.cli.augment import Augment
    from mocoda.engine.engines import Engine


@dataclass(frozen=True)
class EngineOptions:
    """Who does the work."""

    engine: Annotated[str, arg(metavar="NAME")] = "processes"
    """Where the work is done: processes (of this machine) or ray (tasks of a Ray cluster). The result is the same."""
    address: str | None = None
    """With --engine ray: a cluster that runs already, such as 10.0.0.1:6379, or auto for the one that this machine is
    part of. Without it, a Ray of this machine is started."""
    gpus: float | None = None
    """With --engine ray and --device cuda: GPUs that each task asks for; without it 1. With 0.25, four share one."""

    def check(self, device: str) -> None:
        """Refuses what does not go together."""
        from mocoda.engine.engines import ENGINES

        if self.engine not in ENGINES:
            raise unknown_name("engine", self.engine, ENGINES)
        for option, given in (("--address", self.address), ("--gpus", self.gpus)):
            if given is not None and self.engine != "ray":
                raise InputError(f"{option} belongs to Ray: add --engine ray, or remove it.")
        if self.gpus is not None and (device == "cpu" or not 0 < self.gpus <= 64):
            raise InputError(f"--gpus is a number of GPUs for --device cuda, got {self.gpus:g} for {device}.")
        if self.engine == "ray" and device not in ("cpu", "cuda"):
            raise InputError(f"Ray chooses the GPU of each task: say --device cuda, not {device}.")
        if self.engine == "ray":
            from mocoda.engine.engines import ray_package

            ray_package()

    def make(self, workers: int | None, device: str) -> Engine:
        from mocoda.cli.options import warn
        from mocoda.engine.engines import make_engine

        gpus = 0.0 if device == "cpu" else 1.0 if self.gpus is None else self.gpus
        return make_engine(self.engine, workers=workers, address=self.address, gpus=gpus, notice=warn)

    @property
    def spread(self) -> bool:
        """Whether trainings are spread over tasks; processes of one machine do better as one program."""
        return self.engine != "processes"


LOCAL = EngineOptions()


@dataclass(frozen=True)
class ShardOptions:
    """A table in many files."""

    shards: int | None = None
    """Write a folder --out of so many Parquet files, which processes or machines make in any order. After a kill, the
    same command makes those that are missing."""
    only: tuple[int, ...] = ()
    """With --shards: make only the shards of these numbers, from 0. For clusters whose jobs each make some."""

    def folder(self, out: str, rows: int) -> Path | None:
        """The folder of the shards, None where there are to be none; refuses what cannot be one."""
        from mocoda.data.formats import FORMATS

        if self.shards is None:
            if self.only:
                raise InputError("--only chooses among shards: give --shards too, or remove it.")
            return None
        if not 1 <= self.shards <= rows:
            raise InputError(f"shards must be a number from 1 to that of the rows, {rows:,}, got {self.shards}.")
        if bad := [number for number in self.only if not 0 <= number < self.shards]:
            raise InputError(f"shards are counted from 0 to {self.shards - 1}, got --only {bad[0]}.")
        if Path(out).suffix in {suffix for known in FORMATS.values() for suffix in known.suffixes}:
            raise InputError(f"--shards writes a folder, got --out {out}. Name a folder, such as {Path(out).stem}/.")
        if Path(out).exists() and not Path(out).is_dir():
            raise InputError(f"{out!r} is a file. Name another folder for the shards.")
        return Path(out)

    def outputs(self) -> tuple[str, ...]:
        from mocoda.data.formats.shard_folder import MANIFEST, shard_name

        return (MANIFEST, *map(shard_name, range(self.shards or 0)))

    def write(self, command: Augment, folder: Path, workers: int, progress: Progress) -> Mapping[str, Any]:
        """Makes the shards, or prepares the folder for those of --only, which are made outside its lock."""
        from mocoda.augmentation import augment_to_shards

        assert self.shards is not None
        engine = command.engines.make(workers, command.device)
        only = () if self.only else None
        return augment_to_shards(
            folder, command.planned(folder), shards=self.shards, only=only, engine=engine, progress=progress
        )

    def write_own(self, command: Augment, folder: Path, workers: int) -> None:
        """Makes the shards of --only, while others make theirs."""
        from mocoda.augmentation import augment_to_shards

        assert self.shards is not None
        engine = command.engines.make(workers, command.device)
        augment_to_shards(
            folder,
            command.planned(folder),
            shards=self.shards,
            only=self.only,
            engine=engine,
            progress=PlainProgress(),
        )


ONE_FILE = ShardOptions()
