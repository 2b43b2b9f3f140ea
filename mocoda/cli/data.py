"""The commands that record, describe, label, extend and convert data."""

from __future__ import annotations

import inspect
import operator
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mocoda.cli.options import (
    AS_IT_SAYS,
    READABLE,
    TASKS,
    WRITABLE,
    Command,
    Data,
    Flag,
    Flat,
    Maybe,
    MaybeData,
    OnData,
    Out,
    Overwrite,
    ReadOptions,
    Seed,
    Words,
    check_out,
    counted,
    run_folder_of,
    say,
    say_left_out,
    show,
)
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


@dataclass(frozen=True)
class Collect(Command):
    """Record data of a built-in task."""

    task: Annotated[Positional[str], arg(metavar="TASK", help=f"{TASKS}.")]
    rows: int = 40_000
    """Number of transitions to record."""
    seed: Seed = 0
    variety: Maybe[str] = None
    """Behaviour to record: of hooksweep2's scripted expert varied or plain, of OGBench's cubes play, one-cube or noisy.
    Other tasks have a single one."""
    workers: Maybe[int] = None
    """Number of processes that simulate a robot; one per core unless given. The rows do not depend on it."""
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
            options: dict[str, Any] = {"workers": self.workers, "folder": run.path / "parts", "progress": run.progress}
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
    json: Annotated[Maybe[Path], arg(metavar="FILE")] = None
    """Also write the report to this JSON file."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.data import inspection

        if self.json is not None:
            check_target(self.json, inputs=[self.data], overwrite=self.overwrite)
        report = inspection.inspect(self.data, **self.reading.how)
        show(report)
        if self.json is not None:
            write_json(self.json, report.to_json())
            say(f"Written to {self.json}")


@dataclass(frozen=True)
class Track(Command):
    """Give objects that exchange places their columns back.

    Where an observation lists objects by distance, the next state of an object may be in another one's columns. Each
    object is followed through its episode, and keeps the columns that it has in the first row.
    """

    data: Data
    reading: Flat[ReadOptions] = AS_IT_SAYS
    objects: Words = ()
    """Names of the objects, such as car1 and car2 with columns car1.x and car2.x. Unless given, they are found."""
    out: Out = "tracked.hdf5"
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.data import track, write

        check_out(self.out, [self.data], self.overwrite)
        tracked = track(self.reading.read(self.data), self.objects)
        write(tracked, self.out)
        found = "; ".join(
            f"{names} had changed places in {rows:,}" for names, rows in tracked.source["tracked"].items()
        )
        say(f"{self.out}: {len(tracked):,} transitions; {found}")


@dataclass(frozen=True, kw_only=True)
class Label(OnData):
    """Label recorded data with the rewards of a task, of a graph file, or learned from other data.

    Rows keep their goals. Where the reward depends on a goal and the data has none, the task draws goals.
    """

    reward_from: MaybeData = None
    """Learn the reward from this data instead, which has the same columns, and rewards."""
    hindsight: float = 0.0
    """Share of the rows whose goal is replaced by what they achieve."""
    out: Out = "labelled.hdf5"

    def run(self) -> None:
        from mocoda.augmentation import fit_reward, label
        from mocoda.data import read, write
        from mocoda.engine.progress import PlainProgress

        check_out(self.out, (self.data, self.world.graph, self.reward_from), self.overwrite)
        if self.reward_from is not None and (self.world.graph, self.world.task) != (None, None):
            raise InputError("--reward-from, --graph and --task each define the reward; give one of them.")
        if not 0 <= self.hindsight <= 1:
            raise InputError(f"hindsight must be a share of the rows between 0 and 1, got {self.hindsight}.")
        self.world.check()
        labels: Any
        if self.reward_from is None:
            recorded, labels = self.read()
        else:
            recorded = self.reading.read(self.data)
            labels = fit_reward(read(self.reward_from), seed=self.seed, progress=PlainProgress())
            say(f"The reward is learned: {labels.in_words}")
        labelled = label(recorded, labels, seed=self.seed, hindsight=self.hindsight)
        write(labelled, self.out)
        assert labelled.reward is not None
        low, high = float(labelled.reward.min()), float(labelled.reward.max())
        ends = int(labelled.terminal.sum())
        say(f"{self.out}: {len(labelled):,} transitions with rewards from {low:g} to {high:g}, {ends:,} terminal")


@dataclass(frozen=True, kw_only=True)
class AddObjects(OnData):
    """Make data of a bigger world: recorded episodes with additional objects.

    An additional object moves as one like it moved in another recorded episode, for as long as nothing would touch it;
    and objects that behave alike exchange roles. Rows have the bigger world's rewards, if it defines any.
    """

    bigger: Annotated[str, arg(metavar="WORLD", help_behavior_hint="(required)")]
    """The bigger world: a built-in task such as objects:3 or cube-double, or a graph file. In a graph file, columns of
    additional objects come after all other columns of the state, and are named like those of the recorded ones: cube3.x
    like cube1.x."""
    alike: Words
    """The objects that behave alike, as the bigger world names them; those that also occur in the data were recorded.
    """
    resting: float = 0.0
    """An object that moves in two steps by no more than this share of its column's largest number is at rest, and may
    rest in other episodes too."""
    out: Out = "bigger.hdf5"

    def run(self) -> None:
        from mocoda.augmentation import add_objects, label
        from mocoda.augmentation.more_objects import names_of
        from mocoda.data import write
        from mocoda.graph.graph_file import load_task
        from mocoda.tasks import make_task

        is_file = Path(self.bigger).suffix in (".py", ".toml", ".graph")
        check_out(self.out, (self.data, self.world.graph, self.bigger if is_file else None), self.overwrite)
        self.world.check()
        recorded, world = self.read()
        bigger: Any  # a task or a graph file, which may define rewards
        bigger = (
            load_task(self.bigger, names_of(recorded, world.graph, self.alike)) if is_file else make_task(self.bigger)
        )
        made = add_objects(recorded, world.graph, bigger.graph, self.alike, resting=self.resting, seed=self.seed)
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
    """Write data in another format, a policy as ONNX, or only the networks with which a policy acts."""

    data: Annotated[
        Positional[str],
        arg(metavar="DATA", help=f"Recorded data: {READABLE}; or a policy's file, or a folder that holds one policy."),
    ]
    to: Annotated[
        str,
        arg(
            metavar="FILE",
            help=f"File to write: {WRITABLE}; FILE.rrd for Rerun's viewer; for a policy FILE.onnx or FILE.safetensors.",
        ),
    ]
    reading: Flat[ReadOptions] = AS_IT_SAYS
    skip_bad_rows: Flag = False
    """Leave out rows with NaN or infinite numbers."""
    where: Annotated[tuple[str, ...], arg(metavar="CONDITION [...]", help_behavior_hint="")] = ()
    """Keep only rows whose provenance meets every condition, such as confirmed=1 or 'support>=0.1': a column, one of
    =, !=, <, <=, > and >=, and a number."""
    drop: Annotated[Maybe[Path], arg(metavar="FILE")] = None
    """Leave out the rows that this file lists, one number per line, as the page of `mocoda report` exports them. Rows
    are numbered before --where selects among them."""
    overwrite: Overwrite = False

    def run(self) -> None:
        if self.to.endswith((".onnx", ".safetensors")):
            self._export_policy()
            return
        from mocoda.data import write

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

        selecting = {**asdict(self.reading), "skip_bad_rows": self.skip_bad_rows, "where": self.where}
        given = [f"--{name.replace('_', '-')}" for name, value in {**selecting, "drop": self.drop}.items() if value]
        if given:
            raise InputError(
                f"{' and '.join(given)} is for data, and an {Path(self.to).suffix} file is a policy: remove it."
            )
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
        from mocoda.agents.onnx_export import export_onnx

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
