"""The commands that record, label, extend and convert data."""

from __future__ import annotations

import inspect
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from tyro.conf import Positional, arg

from mocoda import augmentation
from mocoda.agents import Policies, Policy
from mocoda.agents.onnx_export import export_onnx
from mocoda.augmentation.more_objects import names_of
from mocoda.cli import options as opt
from mocoda.cli.options import counted, say
from mocoda.data import read, track, write
from mocoda.data.editing import drop
from mocoda.data.formats import compare
from mocoda.data.where import Condition, columns_of
from mocoda.engine.errors import InputError
from mocoda.engine.progress import PlainProgress
from mocoda.engine.runs import RunFolder
from mocoda.graph.graph_file import load_task
from mocoda.tasks import make_task


@dataclass(frozen=True)
class Collect(opt.Command):
    """Record data of a built-in task."""

    task: Annotated[Positional[str], arg(metavar="TASK", help=f"{opt.TASKS}.")]
    rows: int = 40_000
    """Number of transitions to record."""
    seed: opt.Seed = 0
    variety: opt.Maybe[str] = None
    """Behaviour to record: of hooksweep2's scripted expert varied or plain, of OGBench's cubes play, one-cube or noisy.
    Other tasks have a single one."""
    workers: opt.Maybe[int] = None
    """Number of processes that simulate a robot; one per free core unless given. The rows do not depend on it."""
    out: opt.Out = "data.hdf5"
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        task = make_task(self.task)
        accepted = inspect.signature(task.collect).parameters
        chosen = {"variety": self.variety, "workers": self.workers}
        options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
        for name in options:
            if name not in accepted:
                raise InputError(f"the task {self.task!r} has no {name} to choose: remove --{name}.")
        target = opt.check_out(self.out).path
        settings = {"task": self.task, "rows": self.rows, "seed": self.seed, **options}
        settings.pop("workers", None)
        folder = opt.run_folder_of(target)
        with RunFolder(folder, "collect", settings, ["parts/part-*.npz"], self.overwrite, target) as run:
            options |= {"folder": run.path / "parts", "progress": run.progress} if "folder" in accepted else {}
            data = task.collect(self.rows, seed=self.seed, **options)
            write(data, self.out)
            run.discard("parts")
            run.progress("collect", self.rows, self.rows)
        say(f"{self.out}: {data!r}")


@dataclass(frozen=True)
class Track(opt.Command):
    """Give objects that exchange places their columns back.

    Where an observation lists objects by distance, the next state of an object may be in another one's columns. Each
    object is followed through its episode, and keeps the columns that it has in the first row.
    """

    data: opt.Data
    reading: opt.Flat[opt.ReadOptions] = opt.AS_IT_SAYS
    objects: opt.Words = ()
    """Names of the objects, such as car1 and car2 with columns car1.x and car2.x. Unless given, they are found."""
    out: opt.Out = "tracked.hdf5"
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        opt.check_out(self.out, [self.data], self.overwrite)
        tracked = track(self.reading.read(self.data), self.objects)
        write(tracked, self.out)
        moved = (f"{names} had changed places in {rows:,}" for names, rows in tracked.source["tracked"].items())
        say(f"{self.out}: {len(tracked):,} transitions; {'; '.join(moved)}")


@dataclass(frozen=True, kw_only=True)
class Label(opt.OnData):
    """Label recorded data with the rewards of a task, of a graph file, or learned from other data.

    Rows keep their goals. Where the reward depends on a goal and the data has none, the task draws goals.
    """

    reward_from: opt.MaybeData = None
    """Learn the reward from this data instead, which has the same columns, and rewards."""
    hindsight: float = 0.0
    """Share of the rows whose goal is replaced by what they achieve."""
    out: opt.Out = "labelled.hdf5"

    def run(self) -> None:
        opt.check_out(self.out, (self.data, self.world.graph, self.reward_from), self.overwrite)
        labels: Any
        if self.reward_from is None:
            recorded, labels = self.read()
        elif (self.world.graph, self.world.task) != (None, None):
            raise InputError("--reward-from, --graph and --task each define the reward; give one of them.")
        else:
            recorded = self.reading.read(self.data)
            labels = augmentation.fit_reward(read(self.reward_from), seed=self.seed, progress=PlainProgress())
            say(f"The reward is learned: {labels.in_words}")
        labelled = augmentation.label(recorded, labels, seed=self.seed, hindsight=self.hindsight)
        write(labelled, self.out)
        assert labelled.reward is not None
        low, high = map(float, labelled.reward.aminmax())
        ends = int(labelled.terminal.sum())
        say(f"{self.out}: {len(labelled):,} transitions with rewards from {low:g} to {high:g}, {ends:,} terminal")


@dataclass(frozen=True, kw_only=True)
class AddObjects(opt.OnData):
    """Make data of a bigger world: recorded episodes with additional objects.

    An additional object moves as one like it moved in another recorded episode, for as long as nothing would touch it;
    and objects that behave alike exchange roles. Rows have the bigger world's rewards, if it defines any.
    """

    bigger: Annotated[str, arg(metavar="WORLD", help_behavior_hint="(required)")]
    """The bigger world: a built-in task such as objects:3 or cube-double, or a graph file. In a graph file, columns of
    additional objects come after all other columns of the state, and are named like those of the recorded ones: cube3.x
    like cube1.x."""
    alike: opt.Words
    """The objects that behave alike, as the bigger world names them; those that also occur in the data were recorded.
    """
    resting: float = 0.0
    """An object that moves in two steps by no more than this share of its column's largest number is at rest, and may
    rest in other episodes too."""
    out: opt.Out = "bigger.hdf5"

    def run(self) -> None:
        is_file = Path(self.bigger).suffix in (".py", ".toml", ".graph")
        opt.check_out(self.out, (self.data, self.world.graph, self.bigger if is_file else None), self.overwrite)
        recorded, world = self.read()
        bigger: Any  # a task or a graph file, which may define rewards
        bigger = (
            load_task(self.bigger, names_of(recorded, world.graph, self.alike)) if is_file else make_task(self.bigger)
        )
        graphs = (world.graph, bigger.graph)
        made = augmentation.add_objects(recorded, *graphs, self.alike, resting=self.resting, seed=self.seed)
        if getattr(bigger, "label", None) is not None:
            made = augmentation.label(made, bigger, seed=self.seed)
        write(made, self.out)
        assert made.episode is not None
        say(
            f"{self.out}: {len(made):,} transitions with {', '.join(self.alike)}, of {len(recorded):,} recorded, in "
            f"{counted(int(made.episode.max()) + 1, 'episode')}"
        )
        opt.say_left_out(recorded)


@dataclass(frozen=True)
class Export(opt.Command):
    """Write data in another format, a policy as ONNX, or only the networks with which a policy acts."""

    data: Annotated[Positional[str], arg(metavar="DATA")]
    """Data in any format that `mocoda inspect --help` names, or the file of a policy, or a folder that holds just one
    policy."""
    to: Annotated[
        str,
        arg(
            metavar="FILE",
            help=f"File to write: {opt.WRITABLE}; for a policy FILE.onnx or FILE.safetensors.",
        ),
    ]
    reading: opt.Flat[opt.ReadOptions] = opt.AS_IT_SAYS
    skip_bad_rows: opt.Flag = False
    """Leave out rows with NaN or infinite numbers."""
    where: opt.Conditions = ()
    """Keep only rows that meet every condition, such as confirmed=1 or 'box1.x > 1.9 and support >= 0.1': about columns
    of the state and the action, next states (next.box1.x), provenance, reward, terminal, episode and step."""
    drop: opt.MaybeFile = None
    """Leave out the rows that this file lists, one number per line, as the page of `mocoda report` exports them. Rows
    are numbered before --where selects among them."""
    verify: opt.Flag = False
    """Read back what was written, and compare it with the data; the exit code is 1 if it differs."""
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        if self.to.endswith((".onnx", ".safetensors")):
            self._export_policy()
            return
        target = opt.check_out(self.to, [self.data, self.drop], self.overwrite)
        table = self.reading.read(self.data, self.skip_bad_rows)
        if self.drop is not None:
            table = drop(table, rows=self.drop)
        if self.where:
            columns = columns_of(table)
            meets = torch.stack([Condition(text)(columns) for text in self.where]).all(0)
            if not bool(meets.any()):
                raise InputError(f"no row of {self.data!r} has {' and '.join(self.where)}.")
            table = table[meets]
        write(table, self.to)
        say(f"{self.to}: {len(table):,} transitions")
        opt.say_left_out(table)
        if self.verify:
            same, said = compare(table, target)
            say(said)
            if not same:
                sys.exit(1)

    def _export_policy(self) -> None:
        chosen = asdict(self.reading) | {
            name: getattr(self, name) for name in ("skip_bad_rows", "where", "drop", "verify")
        }
        given = [f"--{name.replace('_', '-')}" for name, value in chosen.items() if value]
        if given:
            raise InputError(
                f"{' and '.join(given)} is for data, and an {Path(self.to).suffix} file is a policy: remove it."
            )
        opt.check_file(self.to, [self.data], self.overwrite)
        policies = list(Policies.load(self.data).values()) if Path(self.data).is_dir() else [Policy.load(self.data)]
        if len(policies) != 1:
            raise InputError(
                f"{self.data!r} holds {len(policies)} policies: name the file of one, policy-DATA-SEED.safetensors."
            )
        policy = policies[0]
        if self.to.endswith(".safetensors"):
            policy.without_training().save(self.to)
            say(f"{self.to}: {policy.agent.name}, {Path(self.to).stat().st_size / 1e6:.1f} MB")
        else:
            export_onnx(policy, self.to)
            inputs = "observation and noise" if policy.agent.name == "bcq" else "observation"
            say(f"{self.to}: {policy.agent.name}, {inputs} in, action out")
