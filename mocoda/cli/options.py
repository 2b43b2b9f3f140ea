"""Commands and their options: how words are read, the options that several commands share, and what they print.

A command is a frozen dataclass. Its fields are its options, and their docstrings the help texts. tyro reads the words,
and its errors become one line. Where a recipe, an agent or another choice is named on the command line, that is looked
up first, so that its settings are options too.
"""

from __future__ import annotations

import io
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, cast

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from mocoda.engine.errors import InputError, printable_lines
from mocoda.engine.files import check_target
from mocoda.engine.progress import Progress

if TYPE_CHECKING:
    from mocoda.data.formats import HowToRead, Target
    from mocoda.data.transitions import Transitions
    from mocoda.dynamics import Dynamics
    from mocoda.engine.engines import Engine
    from mocoda.graph.graph_file import FileTask
    from mocoda.graph.local_graph import LocalGraph
    from mocoda.tasks import Task

T = TypeVar("T")
Flat = Annotated[T, arg(name="")]  # a dataclass whose fields are options of the command, without a prefix
Maybe = Annotated[T | None, arg(help_behavior_hint="")]  # an option that may be left out


class Command:
    """Base class of the commands; a subclass is a frozen dataclass.

    kind  the option that decides which `settings` there are, such as "recipe"; "" where there is none
    """

    kind: ClassVar[str] = ""

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Mapping[str, Any]:
        """Defaults that depend on other words of the same call, by field."""
        return {}

    def run(self) -> None:
        """Execute the command."""
        raise NotImplementedError


def parse(command: type[Command], words: Sequence[str], name: str) -> Command:
    """The command called `name` with the options that the words give it."""
    required = (field for field in fields(command) if field.default is field.default_factory is MISSING)  # type: ignore[arg-type]
    default = command(**{field.name: tyro.MISSING for field in required} | dict(command.defaults(words)))
    markers = (tyro.conf.SuppressFixed, tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName)

    def read(words: Sequence[str]) -> Command:
        return tyro.cli(
            command,
            prog=f"mocoda {name}",
            description=getdoc(command),
            args=words,
            default=default,
            config=markers,
            registry=_REGISTRY,
        )

    if {"-h", "--help"}.intersection(words):
        return read(["--help"])  # alone, or tyro leaves out positional arguments that it has read
    printed = io.StringIO()
    try:
        with redirect_stderr(printed), redirect_stdout(printed):
            return read(words)
    except SystemExit:
        kind = command.kind
        chosen = f" --{kind} {value_of(kind, words, getattr(default, kind))}" if kind else ""
        raise InputError(f"{_in_one_line(printed.getvalue())}. See `mocoda {name}{chosen} --help`.") from None


def value_of(option: str, words: Sequence[str], default: str = "") -> str:
    """The value that the words give to an option such as `recipe`, ahead of all others."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--" + option, nargs="?", default=default, const=default)
    return str(getattr(parser.parse_known_args(words)[0], option))


def _in_one_line(box: str) -> str:
    """tyro's error without its title, its frame and its help texts, which are indented."""
    parts = re.split(r"-{9,}", re.sub(r"(?m)^ {10}.*\n", "", box))[1:]
    said = (" ".join(part.split()).rstrip(".") for part in parts)
    text = ". ".join(part for part in said if not part.startswith(("Argument helptext", "For full helptext")))
    return re.sub(r"Error parsing (?!-).*?: |no type matching .* Got errors: - .*?: |\[/?bold\]", "", text)


_REGISTRY = ConstructorRegistry()
_inside: list[type] = []


@_REGISTRY.struct_rule
def _with_help(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Dataclasses as tyro reads them, with the help texts of `_help`."""
    if not is_dataclass(info.type) or info.type in _inside:
        return None
    _inside.append(info.type)
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _inside.pop()
    assert isinstance(spec, StructConstructorSpec)
    return replace(spec, fields=tuple(replace(one, helptext=partial(_help, info.type, one)) for one in spec.fields))


def _help(kind: type, field: StructFieldSpec) -> str:
    """What tyro finds beside a field, or else a line `name  text` in the docstring of its class or a base."""
    text = field.helptext() if callable(field.helptext) else field.helptext
    for cls in kind.__mro__ if not text else ():
        for names, said in re.findall(r"(?m)^(\w+(?:, \w+)*)  +(\S.*(?:\n  .*)*)", getdoc(cls) or ""):
            if field.name in names.split(", "):
                return " ".join(said.split())
    return " ".join((text or "").split())


# Options

READABLE = (
    "HDF5 (mocoda, robomimic or D4RL-style), npz (OGBench, too), Parquet, CSV, a LeRobot folder, a folder of Parquet "
    "shards, minari:NAME or d3rlpy:FILE.h5"
)
WRITABLE = (
    "FILE.hdf5, FILE.npz, FILE.parquet, FILE.csv, robomimic:FILE.hdf5, d4rl:FILE.hdf5, lerobot:FOLDER (v3.0), "
    "lerobot-v2.1:FOLDER, minari:NAME or d3rlpy:FILE.h5"
)
TASKS = "navigation, hooksweep2, objects:N (N objects), cube-single, cube-double, cube-triple or cube-quadruple"

Data = Annotated[Positional[str], arg(metavar="DATA", help=f"Recorded data: {READABLE}.")]
MaybeData = Annotated[Maybe[str], arg(metavar="DATA")]
Device = Annotated[str, arg(metavar="DEVICE", help="Where to compute: cpu or cuda.")]
Seed = Annotated[int, arg(help="Seed of all random draws: the same seed gives the same result.")]
Name = Annotated[str, arg(metavar="NAME")]
MaybeName = Annotated[Maybe[str], arg(metavar="NAME")]
Words = Annotated[tuple[str, ...], arg(metavar="NAME [...]", help_behavior_hint="")]
Numbers = Annotated[tuple[int, ...], arg(metavar="NUMBER [...]", help_behavior_hint="")]
Conditions = Annotated[tuple[str, ...], arg(metavar="CONDITION [...]", help_behavior_hint="")]
Out = Annotated[str, arg(metavar="FILE", help=f"File to write: {WRITABLE}.")]
File = Annotated[Path, arg(metavar="FILE")]
MaybeFile = Annotated[Maybe[Path], arg(metavar="FILE")]
Folder = Annotated[Path, arg(metavar="FOLDER")]
Flag = Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")]
Overwrite = Annotated[
    Flag, arg(help="Replace the output of an earlier run. In a folder, only files which that run made are removed.")
]
TaskName = Annotated[
    Maybe[str],
    arg(
        metavar="NAME",
        help=f"Built-in task that the data comes from: {TASKS}. Data that mocoda has recorded names its task itself.",
    ),
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
    categories: Words = ()
    """Columns whose numbers 0, 1, 2 ... are categories, such as action0. They become one-hot columns."""
    angles: Words = ()
    """Columns of angles that wrap around, in radians or degrees. Their sine and cosine take their place."""
    absent: Words = ()
    """Objects that are absent in rows in which all of their columns are NaN or 0, such as car1 with columns car1.x."""

    @property
    def how(self) -> HowToRead:
        """The keywords of `mocoda.read`."""
        names = assigned("names", self.names, lambda text: text.split(","), "action=act or state=qpos,qvel")
        return {**asdict(self), "names": names}  # type: ignore[typeddict-item]

    def read(self, data: str, skip_bad_rows: bool = False) -> Transitions:
        from mocoda.data import read

        return read(data, **self.how, skip_bad_rows=skip_bad_rows)


AS_IT_SAYS = ReadOptions()


@dataclass(frozen=True)
class GraphOptions:
    """Where the graph of the data comes from."""

    graph: MaybeFile = None
    """Graph file that says which variable depends on which: Python (which is run), TOML, or learned. It may define the
    reward, too."""
    task: TaskName = None

    def __post_init__(self) -> None:
        """Refuses contradictions and unknown tasks before any data is read."""
        if self.graph is not None and self.task is not None:
            raise InputError("--graph and --task both describe the graph; give one of them.")
        if self.task is not None:
            from mocoda.tasks import make_task

            make_task(self.task)

    def load(self, data: Transitions, name: str) -> Task | FileTask:
        """The task that the options name for the data called `name`, or else the one that it was recorded in."""
        if self.graph is not None:
            from mocoda.tasks.own import own_task

            return own_task(self.graph, data=data)
        from mocoda.tasks import make_task

        task = self.task or task_of(data)
        if task is None:
            raise InputError(
                f"nothing describes the graph of {name!r}: pass --graph with a graph file, or --task for data of a "
                f"built-in task ({TASKS})."
            )
        world: Task = make_task(task)
        return world


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
        check_device(device)
        recorded = self.reading.read(self.data).to(device)
        return recorded, self.world.load(recorded, self.data)


@dataclass(frozen=True)
class EngineOptions:
    """Which processes or machines do the work."""

    engine: Literal["processes", "ray"] = "processes"
    """Where the work is done: by processes of this machine, or as tasks of a Ray cluster. The result is the same."""
    address: Maybe[str] = None
    """With --engine ray: a running cluster, such as 10.0.0.1:6379, or auto for the one that this machine belongs to.
    Without it, Ray is started on this machine."""
    gpus: Maybe[float] = None
    """With --engine ray and --device cuda: GPUs per task, 1 unless given. With 0.25, four tasks share a GPU."""

    def check(self, device: str) -> None:
        """Refuses options that contradict each other."""
        if self.engine == "processes":
            if (self.address, self.gpus) != (None, None):
                raise InputError("--address and --gpus belong to Ray: add --engine ray, or remove them.")
            return
        if self.gpus is not None and (device == "cpu" or not 0 < self.gpus <= 64):
            raise InputError(f"--gpus is a number of GPUs for --device cuda, got {self.gpus:g} for {device}.")
        if device not in ("cpu", "cuda"):
            raise InputError(f"Ray chooses the GPU of each task: say --device cuda, not {device}.")
        from mocoda.engine.engines import ray_package

        ray_package()

    def make(self, workers: int | None, device: str) -> Engine:
        from mocoda.engine.engines import make_engine

        gpus = 0.0 if device == "cpu" else 1.0 if self.gpus is None else self.gpus
        return make_engine(
            self.engine,
            workers=workers,
            address=self.address,
            gpus=gpus,
            notice=lambda said: sys.stderr.write(f"{said}\n"),
        )


LOCAL = EngineOptions()

FILE, CHECKPOINT = MODEL_FILES = "dynamics.safetensors", "checkpoint.safetensors"
# The settings of --quick: fewer and smaller networks, for a third of the epochs.
QUICK: dict[str, Any] = {
    "members": 3,
    "hidden": (64, 64),
    "features": 64,
    "epochs": 10,
    "batch": 256,
    "learning_rate": 3e-3,
}


@dataclass(frozen=True)
class DynamicsOptions:
    """Which dynamics model predicts the next states."""

    dynamics: Any
    family: Annotated[str, arg(name="dynamics", metavar="NAME")] = "local"
    """Kind of model: local (each factor depends on its parents in each row), global (on its parents in any row), full
    (on everything), or deterministic (like local, without noise). Its settings are --dynamics.*."""
    model: Annotated[Maybe[Path], arg(metavar="PATH")] = None
    """Use the model of an earlier run, such as other.hdf5.run, instead of training one. --dynamics and
    --dynamics.* are then those of that run."""
    quick: Flag = False
    """Train a smaller model: faster, but less accurate. Options --dynamics.* still apply."""

    @classmethod
    def of(cls, words: Sequence[str]) -> DynamicsOptions:
        """The defaults, which depend on the family and on --quick."""
        from mocoda.dynamics import DYNAMICS

        family = DYNAMICS[value_of("dynamics", words, "local")]
        known = {field.name for field in fields(family)}
        return cls(family(**{name: value for name, value in QUICK.items() if "--quick" in words and name in known}))

    def check(self, out: Path) -> None:
        """Refuses, before any data is read, a model that a run in the folder `out` would replace."""
        if self.model is not None and out.resolve() in (self.model.resolve(), self.model.resolve().parent):
            raise InputError(f"--model is in {str(out)!r}, which this run would replace. Choose another --out.")

    def fit(self, folder: Path, data: Transitions, graph: LocalGraph, seed: int, progress: Progress) -> None:
        """Trains the model unless the folder has it, continuing a training that was killed."""
        from mocoda.dynamics import fit_dynamics

        checkpoint = folder / CHECKPOINT
        if self.model is None and not (folder / FILE).exists():
            model = fit_dynamics(data, graph, self.dynamics, seed=seed, progress=progress, checkpoint=checkpoint)
            model.save(folder / FILE)
            checkpoint.unlink(missing_ok=True)

    def load(self, folder: Path, graph: LocalGraph) -> Dynamics:
        """The model that --model names, or that `fit` has left in the folder."""
        from mocoda.dynamics import Dynamics

        place = folder if self.model is None else self.model
        return Dynamics.load(place / FILE if place.is_dir() else place, graph)


# Helpers


def assigned(option: str, words: Iterable[str], read: Callable[[str], T], example: str) -> dict[str, T]:
    """What words such as name=value assign to each name."""
    try:
        found = {name: read(value) for name, _, value in (word.partition("=") for word in words) if name and value}
    except ValueError:
        found = {}
    if len(found) < len([*words]):
        raise InputError(f"--{option} takes words such as {example}, each name once, got {' '.join(words)!r}.")
    return found


def numbers(text: str) -> list[float]:
    """The numbers in a text such as 0.1,0.2."""
    return [float(number) for number in text.split(",")]


def task_of(data: Transitions) -> str | None:
    """The name of the built-in task that the data was recorded in, if it was."""
    from mocoda.tasks import TASKS

    name = str(data.source.get("task"))
    return name if name.partition(":")[0] in TASKS else None


def show(result: object) -> None:
    """Prints a table; names in it cannot give the terminal orders."""
    from rich.console import Console, Group
    from rich.segment import Segment, Segments

    console = Console(width=None if sys.stdout.isatty() else 140)
    parts = console.render(Group(cast(Any, result)))
    console.print(Segments(Segment(printable_lines(part.text), part.style) for part in parts), end="")


def say(sentence: str) -> None:
    """Prints a sentence on one line, however long it is."""
    sys.stdout.write(f"{printable_lines(sentence)}\n")
    sys.stdout.flush()


def say_left_out(data: Transitions) -> None:
    """Names images, videos and other parts of the recording that new rows do not have."""
    if left := data.source.get("ignored"):
        say(f"Left out when it was read, and so in no row: {', '.join(map(str, left))}.")


def run_folder_of(file: Path) -> Path:
    """The folder that keeps how `file` was made, and unfinished work."""
    return file.with_name(f"{file.name}.run")


def check_file(file: str | Path, inputs: Iterable[str | Path | None] = (), overwrite: bool = False) -> None:
    """Raises if the file cannot be written, if it is an input, or if it exists."""
    files = [str(given).rpartition(":")[2] for given in inputs if given is not None]
    check_target(file, inputs=files, overwrite=overwrite)


def check_out(out: str, inputs: Iterable[str | Path | None] = (), overwrite: bool = True) -> Target:
    """The data that --out names; raises if it cannot be written, if it is an input, or if it exists."""
    from mocoda.data.formats import target_of

    target = target_of(out)
    if target.format.place == "file":
        check_file(target.path, inputs, overwrite)
    return target


def content_of(data: Transitions) -> str:
    """A short hash of a table's rows and labels."""
    from mocoda.engine.checkpoint import fingerprint

    labels = (label for label in (data.reward, data.goal) if label is not None)
    return fingerprint(data.rows, data.next_state, data.terminal, *labels)


def check_device(device: str) -> None:
    """Raises if this machine has no such device."""
    if device == "cpu":
        return
    import torch

    known = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in (*known, *(["cuda"] if len(known) > 1 else [])):
        raise InputError(f"there is no device {device!r} on this machine; there are: {', '.join(known)}.")


def counted(count: int, noun: str) -> str:
    """A number and its noun: "1 agent", "5 agents"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
