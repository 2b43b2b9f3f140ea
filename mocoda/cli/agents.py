"""The commands that train agents, evaluate them and film them."""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from mocoda.agents import AGENTS, Agent, Policies, Policy, evaluate
from mocoda.agents.assumptions import assumptions, episode_goals
from mocoda.agents.evaluation import can_be_played, is_simulated
from mocoda.agents.film import film
from mocoda.agents.goals import ACHIEVED, TOLERANCE
from mocoda.agents.policy import shipped_policy
from mocoda.agents.train import remove_checkpoint, runs_of, train_agents
from mocoda.cli import options as opt
from mocoda.cli.options import counted, say
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.metrics import METRIC_FILES, MetricLog
from mocoda.engine.progress import Progress, in_words
from mocoda.engine.runs import CONFIG, RunFolder, settings_of
from mocoda.graph.columns import ColumnNames
from mocoda.tasks import make_task
from mocoda.tasks.one_at_a_time import OneAtATime

FORECAST_AFTER, LONG = 4.0, 600  # seconds: when the duration of a training is said, and from when on it is long


@dataclass(frozen=True)
class Train(opt.Command):
    """Train one agent for each data set and seed, all as one program.

    After a kill, the same command continues. The settings of the agent that --agent names are options too.
    """

    kind = "agent"

    data: Annotated[Positional[list[str]], arg(metavar="DATA [DATA ...]", help_behavior_hint="(required)")]
    """Recorded data, in any format that `mocoda inspect --help` names. A data set takes the name of its file."""
    settings: opt.Flat[Any]
    agent: opt.Name = "td3-bc"
    """Learning algorithm: td3-bc, bcq, cql, sac, gciql or dqc."""
    task: opt.MaybeName = None
    """Built-in task in which to evaluate the agents while they train; unless given, the one that the data was recorded
    in. Agents of other data are not evaluated."""
    graph: opt.MaybeFile = None
    """Graph file of a task of your own, which may name the environment in which to evaluate the agents."""
    actions: Annotated[opt.Maybe[tuple[float, float]], arg(metavar="LOW HIGH")] = None
    """Without a task: range of possible actions, for every column; -1 to 1 unless given."""
    achieved: opt.Words = ()
    """For agents that take goals from episodes, unless the task is built in: the columns of the state that count, such
    as box1.x box1.y. Otherwise those that the graph file or the data names, or all, which is much harder to learn."""
    tolerance: Annotated[opt.Maybe[float], arg(metavar="DISTANCE")] = None
    """Distance up to which a goal is reached, for the columns of each thing; unless given, that of the graph file or
    0."""
    seeds: int = 5
    """Number of seeds, counted from 0."""
    updates: int = 25_000
    """Gradient steps of each agent."""
    evaluate_every: int = 100
    """Gradient steps between evaluations in the task, if there is one."""
    workers: opt.Maybe[int] = None
    """Number of processes that evaluate in the task's simulator, if it has one, or of CPUs of a local Ray; one per free
    core unless given."""
    tensorboard: opt.Flag = False
    """Write the metrics for TensorBoard too, besides metrics.csv and metrics.jsonl."""
    device: opt.Device = "cpu"
    out: opt.Folder = Path("runs/agents")
    """Folder for the policies and the metrics."""
    overwrite: opt.Overwrite = False
    engines: opt.Flat[opt.EngineOptions] = opt.LOCAL
    reading: opt.Flat[opt.ReadOptions] = opt.AS_IT_SAYS

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        return {"settings": AGENTS[opt.value_of("agent", words, cls.agent)]()}

    def run(self) -> None:
        datasets = self._read()
        task_name = self._task_of(datasets) if self.graph is None else None
        task = None if task_name is None else make_task(task_name)
        own: dict[str, Any] = {}
        if self.graph is not None:
            first = next(iter(datasets.values()))
            task = make_task(graph=self.graph, data=first, achieved=self.achieved or None, tolerance=self.tolerance)
            own = {"graph": str(self.graph), "graph_file": task.fingerprint, "columns": ColumnNames.of(first)}
        elif hasattr(task, "achieved") and (self.achieved or self.tolerance):
            raise InputError(
                f"the task {task_name!r} says what its goals are about: remove --achieved and --tolerance."
            )
        dependent = ("agent", "seeds", "updates", "evaluate_every", "actions", "device")
        settings = {
            "task": task_name,
            **own,
            **asdict(self.settings),
            **{name: getattr(self, name) for name in dependent},
            **({"achieved": self.achieved} if self.achieved else {}),
            **({"tolerance": self.tolerance} if self.tolerance else {}),
            "data": {name: opt.content_of(data) for name, data in datasets.items()},
        }
        if task is None:
            for name, data in datasets.items():
                for assumed in assumptions(name, data, self.settings, self.actions):
                    say(f"{name}: {assumed}")
        elif self.settings.goals_from_episodes and getattr(task, "achieved", None) is None:
            for name, data in datasets.items():
                say(f"{name}: {episode_goals(data)}")
        policies = [f"policy-{name}-{seed}.safetensors" for name in datasets for seed in range(self.seeds)]
        outputs = ["agents.json", "checkpoint.safetensors", *METRIC_FILES, *policies]
        outputs += [f"checkpoint/*/{name}" for name in ("agents.json", "*.safetensors", *METRIC_FILES)]
        with RunFolder(self.out, "train", settings, outputs, self.overwrite) as run:
            metrics = MetricLog(self.out, tensorboard=self.tensorboard)
            if not (self.out / "agents.json").exists():  # else the same command has done it all
                engine = self.engines.make(self.workers, self.device) if self.engines.engine == "ray" else None
                checkpoint = self.out / ("checkpoint" if engine else "checkpoint.safetensors")
                train_agents(
                    datasets,
                    self.settings,
                    seeds=range(self.seeds),
                    updates=self.updates,
                    task=task,
                    actions=self.actions,
                    evaluate_every=self.evaluate_every,
                    checkpoint=checkpoint,
                    engine=engine,
                    workers=self.workers,
                    report=metrics.add,
                    progress=run.progress if engine else _Forecast(self.settings, run.progress),
                ).save(self.out)
                remove_checkpoint(checkpoint)
        then = f"`mocoda evaluate {self.out}` measures how well they do"
        if task is None or not can_be_played(task):
            then = "without a task none was evaluated. `mocoda export POLICY --to policy.onnx` converts one"
        say(f"{counted(len(datasets) * self.seeds, 'agent')} in {self.out}; {then}")

    def _read(self) -> dict[str, Transitions]:
        """The data sets by name; raises, before anything is read, if the options contradict each other."""
        if self.task is not None and self.graph is not None:
            raise InputError("--graph and --task both describe the task; give one of them.")
        if self.task is not None:
            make_task(self.task)
        opt.check_device(self.device)
        self.engines.check(self.device)
        files = {Path(file.rpartition(":")[2]).stem: file for file in self.data}
        if len(files) < len(self.data):
            raise InputError(f"data sets are called by their files' names, which must differ, got {self.data}.")
        datasets = {name: self.reading.read(file).to(self.device) for name, file in files.items()}
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise InputError(f"tolerance must be a distance, a number above 0, got {self.tolerance}.")
        runs_of(datasets, [*range(self.seeds)], self.settings)  # refuses data without rewards
        named: dict[str, Any] = {ACHIEVED: list(self.achieved)} if self.achieved else {}
        named |= {TOLERANCE: self.tolerance} if self.tolerance else {}
        return {name: replace(data, source={**data.source, **named}) for name, data in datasets.items()}

    def _task_of(self, datasets: dict[str, Transitions]) -> str | None:
        if self.task is not None:
            return self.task
        tasks = {name: opt.task_of(data) for name, data in datasets.items()}
        if len(set(tasks.values())) > 1:
            each = ", ".join(f"{name!r} of {task or 'no built-in task'}" for name, task in tasks.items())
            raise InputError(f"these data sets are not of one task: {each}. Choose one with --task.")
        name = next(iter(tasks.values()))
        # An agent that is trained for goals cannot be evaluated in a task that has none.
        without_goals = self.settings.goals_from_episodes and name is not None and is_simulated(make_task(name))
        return None if without_goals else name


class _Forecast:
    """Says once, after some seconds, how long a training takes and, if that is long, how long a smaller one would."""

    def __init__(self, agent: Agent, progress: Progress) -> None:
        self.agent, self.progress = agent, progress
        self.begin: tuple[float, int] | None = None  # when, and the updates made then
        self.said = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.progress(stage, done, total)
        now = time.monotonic()
        since, before = self.begin = self.begin or (now, done)
        if self.said or now - since < FORECAST_AFTER or done == before:
            return
        self.said = True
        left = (now - since) / (done - before) * (total - done)
        smaller = ""
        if left > LONG:
            # Measured on CPUs: the time of an update is that of its products and twice that of 128 × 128 ones.
            products = sum(math.prod(pair) for pair in itertools.pairwise(self.agent.hidden)) / 128**2
            share = 3 / (2 + max(1, products))
            smaller = (
                f"; with `--updates {total // 5} --hidden 128 128` it would take about {in_words(left * share / 5)}"
            )
        sys.stderr.write(f"The training takes about {in_words(left)}{smaller}.\n")
        sys.stderr.flush()


@dataclass(frozen=True)
class Evaluate(opt.Command):
    """Measure how well trained agents solve their task, all from the same starts."""

    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Folder that `mocoda train`, or `Policies.save` in Python, has written."""
    task: opt.MaybeName = None
    """Evaluate in another task than during training: cube-double:4 is OGBench's fourth."""
    graph: opt.MaybeFile = None
    """Evaluate in the task of another graph file than during training."""
    one_at_a_time: opt.Flag = False
    """Show agents goals in which only one thing has yet to move, one after the other."""
    episodes: int = 50
    """Number of episodes of every agent."""
    seed: opt.Seed = 0
    device: opt.Device = "cpu"
    out: opt.MaybeFile = None
    """JSON file for the results of every agent; evaluation.json in a folder of `mocoda train` unless given."""
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        opt.check_device(self.device)
        if self.out is not None:
            opt.check_file(self.out, [self.folder / "agents.json"], self.overwrite)
        policies = Policies.load(self.folder).to(self.device)
        of_a_run = (self.folder / CONFIG).exists()  # and not of `Policies.save`, which does not know the task
        task = _trained_task(self.folder, self.task, self.graph, self.one_at_a_time)
        results = evaluate(policies, task, episodes=self.episodes, seed=self.seed)
        opt.show(results)
        found = {**results.to_json(), "task": task.name, "seed": self.seed}
        out = self.out or self.folder / "evaluation.json"
        if self.out is not None:
            write_json(out, found)
        elif of_a_run:
            with RunFolder.reopen(self.folder, [out.name]):
                write_json(out, found)
        else:
            return
        say(f"Every agent's results: {out}")


@dataclass(frozen=True)
class Watch(opt.Command):
    """Film a trained agent, or the scripted expert, at its task."""

    who: Annotated[Positional[str], arg(metavar="WHO")] = "trained"
    """A folder that `mocoda train` has written, the file of a policy, or one of two words: trained (a policy that comes
    with mocoda) or expert."""
    task: opt.MaybeName = None
    """Task whose environment can draw: hooksweep2, or cubes, cube-single to cube-quadruple (cube-double:4 is its fourth
    official task). Unless given, the one that a folder's agents were trained for, or hooksweep2."""
    graph: opt.MaybeFile = None
    """Graph file of a task of your own, if it is another than during training."""
    one_at_a_time: opt.Flag = False
    """Show the agent goals in which only one thing has yet to move, one after the other."""
    episodes: int = 3
    """Number of episodes to film, one after the other."""
    seed: opt.Seed = 0
    data: opt.Maybe[str] = None
    """In a folder: film the agent trained on this data set; the first unless given."""
    agent_seed: opt.Maybe[int] = None
    """In a folder: film the agent trained with this seed; the first unless given."""
    out: opt.File = Path("sweep.mp4")
    """Video to write, .mp4 or .gif."""
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        if sys.platform == "linux" and "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")  # draws without a screen; mujoco reads it when it is imported
        opt.check_file(self.out, [self.who], self.overwrite)
        name, policy = self._find()
        known = self.graph is not None or (Path(self.who) / CONFIG).exists()
        played = self.task if known else self.task or "hooksweep2"
        task = _trained_task(Path(self.who), played, self.graph, self.one_at_a_time)
        successes = film(self.out, task, policy, episodes=self.episodes, seed=self.seed)
        say(f"{self.out}: {name}, {successes} of {counted(self.episodes, 'episode')} successful")

    def _find(self) -> tuple[str, Policy | None]:
        """The title of the film, and its policy; None for the expert."""
        if Path(self.who).is_dir():
            policies = Policies.load(self.who)
            for (data, seed), policy in policies.items():
                if self.data in (None, data) and self.agent_seed in (None, seed):
                    return f"{data}, seed {seed}", policy
            known = ", ".join(f"{data} with seed {seed}" for data, seed in policies)
            raise InputError(f"no agent in {self.who!r} has that data and seed; there are: {known}.")
        if self.data is not None or self.agent_seed is not None:
            raise InputError(f"--data and --agent-seed choose among the agents of a folder, and {self.who!r} is none.")
        if self.who == "trained":
            return "a trained agent", shipped_policy(self.task or "hooksweep2")
        return self.who, None if self.who == "expert" else Policy.load(self.who)


def _trained_task(folder: Path, name: str | None, graph: Path | None, one_at_a_time: bool) -> Any:
    """The built-in task of that name, the task of a graph file, or what the agents of a folder were trained for."""
    task = _whole_task(folder, name, graph)
    return OneAtATime(task) if one_at_a_time else task


def _whole_task(folder: Path, name: str | None, graph: Path | None) -> Any:
    settings = settings_of(folder) if (folder / CONFIG).exists() else {}  # `Policies.save` writes none
    if name is None and (graph := graph or settings.get("graph")) is not None:
        columns = ColumnNames(*map(tuple, settings["columns"])) if "columns" in settings else None
        goals = {name: settings.get(name) for name in ("achieved", "tolerance")}
        return make_task(graph=graph, data=columns, **goals)
    if (name := name or settings.get("task")) is None:
        raise InputError(f"{str(folder)!r} does not say which task its agents are to solve: pass --task or --graph.")
    return make_task(name)
