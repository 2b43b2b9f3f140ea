"""The commands that record, describe, check and convert data."""

from __future__ import annotations

import inspect
import operator
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from mocoda.cli.options import (
    AS_IT_SAYS,
    NO_GRAPH,
    Data,
    Device,
    Folder,
    GraphOptions,
    Out,
    Overwrite,
    ReadOptions,
    Seed,
    Words,
    check_device,
    check_out,
    console,
    content_of,
    counted,
    run_folder_of,
    say,
    say_left_out,
)
from mocoda.cli.parser import Command, Flat
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import check_target, write_json

if TYPE_CHECKING:
    from mocoda.data.transitions import Transitions

COMPARISONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

SHOWN_DOUBTS = 8  # edges


@dataclass(frozen=True)
class Collect(Command):
    """Record data of a built-in task."""

    task: Annotated[Positional[str], arg(metavar="TASK")]
    """{tasks} (objects:6 has six of them)."""
    rows: int = 40_000
    """Transitions to record."""
    seed: Seed = 0
    variety: str | None = None
    """How hooksweep2's expert sweeps: varied, or plain; how OGBench's oracle moves cubes: play, one-cube or noisy.
    Other tasks have no such option."""
    workers: int | None = None
    """Processes that simulate a robot; without it one per core. The rows are the same."""
    out: Out = "data.hdf5"
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.data import write
        from mocoda.engine.runs import RunFolder
        from mocoda.tasks import make_task

        task = make_task(self.task)
        accepted = inspect.signature(task.collect).parameters
        for name in ("variety", "workers"):
            if getattr(self, name) is not None and name not in accepted:
                raise InputError(f"the task {self.task!r} has no {name} to choose: remove --{name}.")
        target = check_out(self.out)
        settings = {"task": self.task, "rows": self.rows, "seed": self.seed}
        settings |= {} if self.variety is None else {"variety": self.variety}
        folder = run_folder_of(target.path)
        with RunFolder(folder, "collect", settings, ["parts/part-*.npz"], self.overwrite, target.path) as run:
            parts = run.path / "parts"
            options: dict[str, Any] = {"workers": self.workers, "folder": parts, "progress": run.progress}
            options |= {} if self.variety is None else {"variety": self.variety}
            chosen = {name: value for name, value in options.items() if name in accepted}
            data = task.collect(self.rows, seed=self.seed, **chosen)
            write(data, self.out)
            run.discard("parts")
            run.progress("collect", self.rows, self.rows)
        say(f"{self.out}: {data!r}")


@dataclass(frozen=True)
class Inspect(Command):
    """Describe recorded data, and report what is wrong with it."""

    data: Data
    reading: Flat[ReadOptions] = AS_IT_SAYS
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the report to this file, too."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.data import inspection

        if self.json is not None:
            check_target(self.json, inputs=[self.data], overwrite=self.overwrite)
        report = inspection.inspect(self.data, **self.reading.how)
        console.print(report)
        if self.json is not None:
            write_json(self.json, report.to_json())
            say(f"Written to {self.json}")


@dataclass(frozen=True)
class Check(Command):
    """Check whether the data supports its graph, which edges are missing, and which recipe to try."""

    data: Data
    world: Flat[GraphOptions] = NO_GRAPH
    quick: FlagCreatePairsOff[bool] = False
    """Take less time: the answer is coarser, and small effects may go unnoticed."""
    seed: Seed = 0
    device: Device = "cpu"
    out: Folder = Path("runs/check")
    """Folder for advice.json and advice.png."""
    reading: Flat[ReadOptions] = AS_IT_SAYS
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.analysis import check
        from mocoda.analysis.check_figure import draw_advice
        from mocoda.engine.runs import RunFolder
        from mocoda.graph import LearnedGraph

        self.world.check()
        check_device(self.device)
        recorded = self.reading.read(self.data).to(self.device)
        world = self.world.load(recorded, self.data)
        settings = {"data": self.data, **asdict(self.world), "seed": self.seed, "quick": self.quick}
        settings |= {"content": content_of(recorded), "graph_file": getattr(world, "fingerprint", None)}
        outputs = ("advice.json", "advice.png")
        with RunFolder(self.out, "check", settings | {"device": self.device}, outputs, self.overwrite) as run:
            advice = check(recorded, world.graph, task=world, seed=self.seed, quick=self.quick, progress=run.progress)
            doubts = world.graph.doubts(recorded.rows) if isinstance(world.graph, LearnedGraph) else None
            more = {} if doubts is None else {"unsure": doubts}
            write_json(self.out / "advice.json", advice.to_json() | more)
            draw_advice(advice, self.out / "advice.png")
        console.print(advice)
        if doubts is not None:
            shown = ", ".join(f"{edge} in {100 * share:.2g}%" for edge, share in list(doubts.items())[:SHOWN_DOUBTS])
            say(f"Where the learned graph is unsure of an edge, in percent of the rows: {shown or 'nowhere'}")
        say(f"Written to {self.out / 'advice.json'}; drawn: {self.out / 'advice.png'}")


@dataclass(frozen=True)
class AddObjects(Command):
    """Make data of a bigger world: recorded episodes with objects that they did not have.

    An added object does what one like it did in another recorded episode, for as long as nothing would touch it, and
    objects that are alike get each other's roles. Rows have the bigger world's rewards, if it defines any.
    """

    data: Data
    bigger: Annotated[str, arg(metavar="WORLD")]
    """The bigger world: a built-in task ({tasks}), or a graph file. In the latter, columns of added objects come after
    all others of the state, and are called as those they are like: cube3.x as cube1.x is."""
    alike: Words
    """The objects that behave alike, as the bigger world calls them; those that the data has were recorded."""
    reading: Flat[ReadOptions] = AS_IT_SAYS
    world: Flat[GraphOptions] = NO_GRAPH
    resting: float = 0.0
    """What changes in two steps by no more than this share of its column's largest number is at rest, and rests in
    other episodes too."""
    seed: Seed = 0
    out: Out = "bigger.hdf5"
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.augmentation import add_objects, label
        from mocoda.augmentation.more_objects import names_of
        from mocoda.data import write
        from mocoda.graph.graph_file import load_task
        from mocoda.tasks import make_task

        is_file = Path(self.bigger).suffix in (".py", ".toml", ".graph")
        check_out(self.out, (self.data, self.world.graph, self.bigger if is_file else None), self.overwrite)
        self.world.check()
        recorded = self.reading.read(self.data)
        graph = self.world.load(recorded, self.data).graph
        bigger: Any  # a task or a graph file, which may define rewards
        bigger = load_task(self.bigger, names_of(recorded, graph, self.alike)) if is_file else make_task(self.bigger)
        made = add_objects(recorded, graph, bigger.graph, self.alike, resting=self.resting, seed=self.seed)
        if getattr(bigger, "label", None) is not None:
            made = label(made, bigger, seed=self.seed)
        write(made, self.out)
        assert made.episode is not None
        say(
            f"{self.out}: {len(made):,} transitions with {', '.join(self.alike)}, of {len(recorded):,} recorded, in "
            f"{counted(int(made.episode.max()) + 1, 'episode')}"
        )
        say_left_out(recorded)


@dataclass(frozen=True)
class Export(Command):
    """Write data in another format, or a policy as ONNX, or as a file of only the networks that it acts by."""

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Recorded data ({formats}), or a policy's file, or its folder if it is the only one in it."""
    to: Annotated[str, arg(metavar="FILE")]
    """What to write: {targets}; FILE.rrd for Rerun's viewer; for a policy FILE.onnx or FILE.safetensors."""
    reading: Flat[ReadOptions] = AS_IT_SAYS
    skip_bad_rows: FlagCreatePairsOff[bool] = False
    """Leave out rows with NaN or infinite numbers."""
    where: Annotated[tuple[str, ...], arg(metavar="CONDITION [...]", help_behavior_hint="")] = ()
    """Keep only rows whose provenance meets every condition, such as confirmed=1 or 'support>=0.1': a column, one of
    =, !=, <, <=, > and >=, and a number."""
    drop: Annotated[Path | None, arg(metavar="FILE")] = None
    """Leave out the rows that this file lists, one number a line, as the page of `mocoda report` exports them. Rows are
    counted before --where chooses among them."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.data import write

        if self.to.endswith((".onnx", ".safetensors")):
            given = [f"--{name.replace('_', '-')}" for name, value in asdict(self.reading).items() if value]
            given += ["--skip-bad-rows"] * self.skip_bad_rows + ["--where"] * bool(self.where)
            given += ["--drop"] * (self.drop is not None)
            if given:
                raise InputError(
                    f"{' and '.join(given)} is for data, and an {Path(self.to).suffix} file is a policy: remove it."
                )
            self._export_policy()
            return
        viewed = self.to.endswith(".rrd")
        if viewed:
            check_target(self.to, inputs=[given for given in (self.data, self.drop) if given], overwrite=self.overwrite)
        else:
            check_out(self.to, [self.data, self.drop], self.overwrite)
        table = self.reading.read(self.data, self.skip_bad_rows)
        if self.drop is not None:
            from mocoda.analysis import drop_rows

            table = drop_rows(table, self.drop)
        if self.where:
            table = _where(table, self.where, self.data)
        if viewed:
            from mocoda.analysis import export_rerun

            export_rerun(table, self.to)
        else:
            write(table, self.to)
        say(f"{self.to}: {len(table):,} transitions")
        say_left_out(table)

    def _export_policy(self) -> None:
        from mocoda.agents import Policies, Policy
        from mocoda.agents.onnx_export import export_onnx

        check_target(self.to, inputs=[self.data], overwrite=self.overwrite)
        if Path(self.data).is_dir():
            policies = Policies.load(self.data)
            if len(policies) != 1:
                raise InputError(
                    f"{self.data!r} holds {len(policies)} policies: name the file of one, policy-DATA-SEED.safetensors."
                )
            policy = next(iter(policies.values()))
        else:
            policy = Policy.load(self.data)
        if self.to.endswith(".safetensors"):
            policy.without_training().save(self.to)
            say(f"{self.to}: {policy.agent.name}, {Path(self.to).stat().st_size / 1e6:.1f} MB")
            return
        export_onnx(policy, self.to)
        inputs = "observation and noise" if policy.agent.name == "bcq" else "observation"
        say(f"{self.to}: {policy.agent.name}, {inputs} in, action out")


def _where(data: Transitions, conditions: tuple[str, ...], name: str) -> Transitions:
    """The rows whose provenance meets all of the conditions."""
    for condition in conditions:
        parts = re.fullmatch(r"(\w+)\s*([<>!]?=|[<>])\s*(\S+)", condition.strip())
        try:
            if parts is None:
                raise ValueError
            limit = float(parts[3])
        except ValueError:
            raise InputError(
                f"a condition is a column of provenance, a comparison and a number, such as confirmed=1 or "
                f"'support>=0.1', got {condition!r}."
            ) from None
        if not data.provenance:
            raise InputError(f"{name!r} has no provenance to choose rows by; `mocoda augment` and `audit` write it.")
        if parts[1] not in data.provenance:
            raise unknown_name("column of provenance", parts[1], data.provenance)
        meets = COMPARISONS[parts[2]](data.provenance[parts[1]], limit)
        if not bool(meets.any()):
            raise InputError(f"no row of {name!r} has {' and '.join(conditions)}.")
        data = data[meets]
    return data
