"""Options that several commands have, each described once, and what commands print."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
from rich.text import Text
from tyro.conf import FlagCreatePairsOff, Positional, arg

from mocoda.cli.parser import Help
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_target

if TYPE_CHECKING:
    from mocoda.data.formats import HowToRead, Target
    from mocoda.data.transitions import Transitions
    from mocoda.graph.graph_file import FileTask
    from mocoda.tasks import Task

Data = Annotated[Positional[str], arg(metavar="DATA"), Help("Recorded data: {formats}.")]
DataOption = Annotated[str, arg(metavar="DATA"), Help("Recorded data: {formats}.")]
Device = Annotated[str, arg(metavar="DEVICE"), Help("cpu or cuda.")]
Seed = Annotated[int, Help("The same seed gives the same result.")]
Words = Annotated[tuple[str, ...], arg(metavar="NAME [...]", help_behavior_hint="")]
Out = Annotated[str, arg(metavar="FILE"), Help("What to write: {targets}.")]
Folder = Annotated[Path, arg(metavar="FOLDER")]
Overwrite = Annotated[
    FlagCreatePairsOff[bool],
    Help("Replace what an earlier run wrote there. Of a folder, only files which that run made are removed."),
]

console = rich.console.Console(width=None if sys.stdout.isatty() else 140)


@dataclass(frozen=True)
class GraphOptions:
    """Where the graph of the data comes from."""

    graph: Path | None = None
    """Graph file, Python (which is run) or TOML: which variables depend on which. It may also define the reward."""
    task: str | None = None
    """Built-in task that the data is of, instead of a graph file: {tasks} (objects:6 has six of them). Data recorded by
    mocoda names its task itself."""

    def check(self) -> None:
        """Refuses, before any data is read, what no data could satisfy."""
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


@dataclass(frozen=True)
class ReadOptions:
    """What is what in data that does not say so itself."""

    columns: Words = ()
    """Names of the state's and then the action's columns, for data that does not name them; `cube.x` and `cube.y` are
    of one factor."""
    names: Words = ()
    """What arrays or columns are called there, if not as usual: action=act, or state=qpos,qvel for several."""
    observations: Words = ()
    """Observations that make up the state, of robomimic's files and LeRobot's folders."""
    filter_key: str | None = None
    """Demonstrations of a robomimic file to read, such as train."""
    episode_steps: int | None = None
    """Rows of an episode, for data that has no next states and does not mark ends of episodes."""

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


def task_of(data: Transitions) -> str | None:
    """The name of the built-in task that data was recorded in."""
    from mocoda.tasks import TASKS

    name = str(data.source.get("task"))
    return name if name.partition(":")[0] in TASKS else None


def say(sentence: str) -> None:
    """Prints a sentence as it is: brackets are not markup, and paths are not broken."""
    console.print(Text(sentence), soft_wrap=True)


def say_left_out(data: Transitions) -> None:
    """Images, videos and whatever else is beside the numbers: no new row has them."""
    if left := data.source.get("ignored"):
        say(f"Left out when it was read, and so in no row: {', '.join(map(str, left))}.")


def warn(sentence: str) -> None:
    """Prints a sentence on stderr: what somebody who waits should know."""
    sys.stderr.write(sentence + "\n")
    sys.stderr.flush()


def run_folder_of(file: Path) -> Path:
    """The folder that keeps how `file` was made, and what is not finished."""
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
    """A short hash of all that is in a table."""
    from mocoda.engine.checkpoint import fingerprint

    labels = (label for label in (data.reward, data.goal) if label is not None)
    return fingerprint(data.rows, data.next_state, data.terminal, *labels)


def check_device(device: str) -> None:
    import torch

    known = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in (*known, *(["cuda"] if len(known) > 1 else [])):
        raise InputError(f"there is no device {device!r} on this machine; there are: {', '.join(known)}.")


def counted(count: int, noun: str) -> str:
    """A number and its noun: "1 agent", "5 agents"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
