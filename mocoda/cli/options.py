"""Options that several commands share, each described once, and what commands print."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tyro.conf import FlagCreatePairsOff, Positional, arg

from mocoda.cli.parser import Command, Flat, Maybe
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import check_target

if TYPE_CHECKING:
    from mocoda.data.formats import HowToRead, Target
    from mocoda.data.transitions import Transitions
    from mocoda.engine.engines import Engine
    from mocoda.graph.graph_file import FileTask
    from mocoda.tasks import Task

READABLE = (
    "HDF5 (mocoda, robomimic or D4RL-style), npz (OGBench, too), Parquet, CSV, a LeRobot folder, a folder of Parquet "
    "shards, minari:NAME or d3rlpy:FILE.h5"
)
WRITABLE = (
    "FILE.hdf5, FILE.npz, FILE.parquet, FILE.csv, robomimic:FILE.hdf5, d4rl:FILE.hdf5, lerobot:FOLDER, minari:NAME or "
    "d3rlpy:FILE.h5"
)
TASKS = "navigation, hooksweep2, objects:N (N objects), cube-single, cube-double or cube-triple"

T = TypeVar("T")
Data = Annotated[Positional[str], arg(metavar="DATA", help=f"Recorded data: {READABLE}.")]
MaybeData = Annotated[Maybe[str], arg(metavar="DATA")]
Device = Annotated[str, arg(metavar="DEVICE", help="Where to compute: cpu or cuda.")]
Seed = Annotated[int, arg(help="Seed of all random draws: the same seed gives the same result.")]
Words = Annotated[tuple[str, ...], arg(metavar="NAME [...]", help_behavior_hint="")]
Out = Annotated[str, arg(metavar="FILE", help=f"File to write: {WRITABLE}.")]
File = Annotated[Path, arg(metavar="FILE")]
Folder = Annotated[Path, arg(metavar="FOLDER")]
Flag = FlagCreatePairsOff[bool]
Overwrite = Annotated[
    Flag, arg(help="Replace the output of an earlier run. In a folder, only files which that run made are removed.")
]


@dataclass(frozen=True)
class ReadOptions:
    """How to read data that does not describe itself."""

    columns: Words = ()
    """Names for the columns of the state, then of the action. Columns `cube.x` and `cube.y` belong to one factor."""
    names: Words = ()
    """Names of arrays or columns in the file where they are unusual: action=act, or state=qpos,qvel to join several."""
    observations: Words = ()
    """Observations that form the state, for robomimic files and LeRobot folders."""
    filter_key: Maybe[str] = None
    """Group of demonstrations to read from a robomimic file, such as train."""
    episode_steps: Maybe[int] = None
    """Rows per episode, for data that has no next states and does not mark where episodes end."""

    @property
    def how(self) -> HowToRead:
        """The keywords of `mocoda.read`."""
        names: dict[str, list[str]] = {}
        for word in self.names:
            ours, equals, theirs = word.partition("=")
            if not equals or not ours or not theirs or ours in names:
                raise InputError(f"--names takes words such as action=act or state=qpos,qvel, each once, got {word!r}.")
            names[ours] = theirs.split(",")
        return {
            "columns": self.columns,
            "names": names,
            "observations": self.observations,
            "filter_key": self.filter_key,
            "episode_steps": self.episode_steps,
        }

    def read(self, data: str, skip_bad_rows: bool = False) -> Transitions:
        from mocoda.data import read

        return read(data, **self.how, skip_bad_rows=skip_bad_rows)


AS_IT_SAYS = ReadOptions()


@dataclass(frozen=True)
class GraphOptions:
    """Where the graph of the data comes from."""

    graph: Annotated[Maybe[Path], arg(metavar="FILE")] = None
    """Graph file that says which variable depends on which: Python (which is run), TOML, or learned. It may define the
    reward, too."""
    task: Annotated[
        Maybe[str],
        arg(
            metavar="NAME",
            help=f"Built-in task that the data comes from, instead of a graph file: {TASKS}. Data that mocoda has "
            "recorded names its task itself.",
        ),
    ] = None

    def check(self) -> None:
        """Refuses contradictions and unknown tasks before any data is read."""
        from mocoda.tasks import make_task

        if self.graph is not None and self.task is not None:
            raise InputError("--graph and --task both describe the graph; give one of them.")
        if self.task is not None:
            make_task(self.task)

    def load(self, data: Transitions, name: str) -> Task | FileTask:
        """The task that the options name for the data called `name`, or else the one that it was recorded in."""
        from mocoda.graph.graph_file import load_task
        from mocoda.tasks import TASKS, make_task

        if self.graph is not None:
            return load_task(self.graph, data)
        task = self.task or task_of(data)
        if task is None:
            raise InputError(
                f"nothing describes the graph of {name!r}: pass --graph with a graph file, or --task for data of a "
                f"built-in task ({TASKS.choices})."
            )
        return make_task(task)


NO_GRAPH = GraphOptions()


@dataclass(frozen=True, kw_only=True)
class OnData(Command):
    """Base class of commands on recorded data and its graph."""

    data: Data
    world: Flat[GraphOptions] = NO_GRAPH
    seed: Seed = 0
    overwrite: Overwrite = False
    reading: Flat[ReadOptions] = AS_IT_SAYS

    def identity(self, data: Transitions, world: Task | FileTask, *without: str) -> dict[str, Any]:
        """What the result depends on: the options but some, and the contents of the files that they name."""
        skipped = ("out", "overwrite", "reading", *without)
        options = {name: value for name, value in asdict(self).items() if name not in skipped}
        return {**options, "content": content_of(data), "graph_file": getattr(world, "fingerprint", None)}

    def read(self, device: str = "cpu") -> tuple[Transitions, Task | FileTask]:
        """The data, and the task or graph file that describes it."""
        recorded = self.reading.read(self.data).to(device)
        return recorded, self.world.load(recorded, self.data)


@dataclass(frozen=True)
class EngineOptions:
    """Which processes or machines do the work."""

    engine: Annotated[str, arg(metavar="NAME")] = "processes"
    """processes (of this machine) or ray (tasks of a Ray cluster). The result is the same."""
    address: Maybe[str] = None
    """With --engine ray: a running cluster, such as 10.0.0.1:6379, or auto for the one that this machine belongs to.
    Without it, Ray is started on this machine."""
    gpus: Maybe[float] = None
    """With --engine ray and --device cuda: GPUs per task, 1 unless given. With 0.25, four tasks share a GPU."""

    def check(self, device: str) -> None:
        """Refuses options that contradict each other."""
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
        from mocoda.engine.engines import make_engine

        gpus = 0.0 if device == "cpu" else 1.0 if self.gpus is None else self.gpus
        return make_engine(self.engine, workers=workers, address=self.address, gpus=gpus, notice=warn)


LOCAL = EngineOptions()


def task_of(data: Transitions) -> str | None:
    """The name of the built-in task that the data was recorded in, if it was."""
    from mocoda.tasks import TASKS

    name = str(data.source.get("task"))
    return name if name.partition(":")[0] in TASKS else None


def show(result: object) -> None:
    """Prints a table."""
    import rich.console

    rich.console.Console(width=None if sys.stdout.isatty() else 140).print(result)


def say(sentence: str) -> None:
    """Prints a sentence on a line of its own, however long it is."""
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def say_left_out(data: Transitions) -> None:
    """Names images, videos and other parts of the recording that new rows do not have."""
    if left := data.source.get("ignored"):
        say(f"Left out when it was read, and so in no row: {', '.join(map(str, left))}.")


def warn(sentence: str) -> None:
    """Prints a sentence on stderr."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def run_folder_of(file: Path) -> Path:
    """The folder that keeps how `file` was made, and unfinished work."""
    return file.with_name(f"{file.name}.run")


def check_out(out: str, inputs: Iterable[str | Path | None] = (), overwrite: bool = True) -> Target:
    """The target that --out names; raises if it cannot be written, if it is an input, or if it exists."""
    from mocoda.data.formats import target_of

    target = target_of(out)
    if target.format.place == "file":
        files = [str(given).rpartition(":")[2] for given in inputs if given is not None]
        check_target(target.path, inputs=files, overwrite=overwrite)
    return target


def content_of(data: Transitions) -> str:
    """A short hash of a table's rows and labels."""
    from mocoda.engine.checkpoint import fingerprint

    labels = (label for label in (data.reward, data.goal) if label is not None)
    return fingerprint(data.rows, data.next_state, data.terminal, *labels)


def check_device(device: str) -> None:
    """Raises if this machine has no such device."""
    import torch

    known = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in (*known, *(["cuda"] if len(known) > 1 else [])):
        raise InputError(f"there is no device {device!r} on this machine; there are: {', '.join(known)}.")


def counted(count: int, noun: str) -> str:
    """A number and its noun: "1 agent", "5 agents"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
