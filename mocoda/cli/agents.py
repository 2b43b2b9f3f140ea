"""The commands that train agents, evaluate them and film them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mocoda.cli.options import (
    AS_IT_SAYS,
    LOCAL,
    READABLE,
    TASKS,
    Command,
    Device,
    EngineOptions,
    File,
    Flag,
    Flat,
    Folder,
    Maybe,
    Overwrite,
    ReadOptions,
    Seed,
    check_device,
    content_of,
    counted,
    say,
    show,
    task_of,
    value_of,
)
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_target, write_json

if TYPE_CHECKING:
    from mocoda.agents import Policy
    from mocoda.data.transitions import Transitions


@dataclass(frozen=True)
class Train(Command):
    """Train one agent for each data set and seed, all as one program.

    After a kill, the same command continues. The settings of the agent that --agent names are options too.
    """

    kind = "agent"

    data: Annotated[
        Positional[list[str]],
        arg(
            metavar="DATA [DATA ...]",
            help=f"Recorded data: {READABLE}. A data set takes the name of its file.",
            help_behavior_hint="(required)",
        ),
    ]
    settings: Flat[Any]
    agent: Annotated[str, arg(metavar="NAME")] = "td3-bc"
    """Learning algorithm: td3-bc, bcq, cql, sac or gciql."""
    task: Annotated[
        Maybe[str],
        arg(
            metavar="NAME",
            help=f"Task in which to evaluate the agents while they train: {TASKS}. Data that mocoda has recorded names "
            "its task itself. Agents of other data are not evaluated.",
        ),
    ] = None
    actions: Annotated[Maybe[tuple[float, float]], arg(metavar="LOW HIGH")] = None
    """Without a task: range of possible actions, for every column; -1 to 1 unless given."""
    achieved: Annotated[tuple[str, ...], arg(metavar="COLUMN [COLUMN ...]", help_behavior_hint="")] = ()
    """Without a task, for agents that take goals from episodes: the columns of the state that goals specify; those that
    the data names, or all, unless given."""
    seeds: int = 5
    """Number of seeds, counted from 0."""
    updates: int = 25_000
    """Gradient steps of each agent."""
    evaluate_every: int = 100
    """Gradient steps between evaluations."""
    workers: Maybe[int] = None
    """Number of processes that evaluate in the task's simulator, if it has one, or of CPUs of a local Ray; one per core
    unless given."""
    tensorboard: Flag = False
    """Write the metrics for TensorBoard too, besides metrics.csv and metrics.jsonl."""
    device: Device = "cpu"
    out: Folder = Path("runs/agents")
    """Folder for the policies and the metrics."""
    overwrite: Overwrite = False
    engines: Flat[EngineOptions] = LOCAL
    reading: Flat[ReadOptions] = AS_IT_SAYS

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        from mocoda.agents import AGENTS

        return {"settings": AGENTS[value_of("agent", words, "td3-bc")]()}

    def run(self) -> None:
        from mocoda.agents.assumptions import assumptions
        from mocoda.agents.train import remove_checkpoint, train_agents
        from mocoda.engine.metrics import METRIC_FILES, MetricLog
        from mocoda.engine.runs import RunFolder
        from mocoda.tasks import make_task

        names = self._check()
        datasets = self._read(names)
        task_name = self._task_of(datasets)
        task = None if task_name is None else make_task(task_name)
        settings = {
            "task": task_name,
            "agent": self.agent,
            **asdict(self.settings),
            "seeds": self.seeds,
            "updates": self.updates,
            "evaluate_every": self.evaluate_every,
            "actions": self.actions,
            **({"achieved": self.achieved} if self.achieved else {}),
            "device": self.device,
            "data": {name: content_of(data) for name, data in datasets.items()},
        }
        if task is None:
            for name, data in datasets.items():
                for assumed in assumptions(name, data, self.settings, self.actions):
                    say(f"{name}: {assumed}")
        policies = [f"policy-{name}-{seed}.safetensors" for name in names for seed in range(self.seeds)]
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
                    progress=run.progress,
                ).save(self.out)
                remove_checkpoint(checkpoint)
        then = f"`mocoda evaluate {self.out}` measures how well they do"
        if task is None:
            then = "without a task none was evaluated. `mocoda export POLICY --to policy.onnx` converts one"
        say(f"{counted(len(datasets) * self.seeds, 'agent')} in {self.out}; {then}")

    def _check(self) -> list[str]:
        """Refuses, before anything is read, what no data could satisfy. Returns the names of the data sets."""
        from mocoda.engine.metrics import check_tensorboard
        from mocoda.tasks import make_task

        for name in ("seeds", "updates", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.task is not None:
            make_task(self.task)
        if not self.data:
            raise InputError("there is nothing to train on: name at least one file of transitions.")
        names = [Path(file.rpartition(":")[2]).stem for file in self.data]
        if len(set(names)) != len(names):
            raise InputError(f"data sets are called by their files' names, which must differ, got {', '.join(names)}.")
        check_device(self.device)
        self.engines.check(self.device)
        if self.tensorboard:
            check_tensorboard()
        return names

    def _read(self, names: Sequence[str]) -> dict[str, Transitions]:
        datasets = {}
        labelled = not self.settings.goals_from_episodes
        for name, file in zip(names, self.data, strict=True):
            data = self.reading.read(file).to(self.device)
            if self.achieved:
                data = replace(data, source={**data.source, "achieved_goal": list(self.achieved)})
            datasets[name] = data
            if labelled and datasets[name].reward is None:
                raise InputError(
                    f"{file!r} has no rewards to train on. `mocoda label {file}` with --task, --graph or --reward-from "
                    "adds them."
                )
        return datasets

    def _task_of(self, datasets: dict[str, Transitions]) -> str | None:
        from mocoda.tasks import is_simulated, make_task

        if self.task is not None:
            return self.task
        tasks = {name: task_of(data) for name, data in datasets.items()}
        if len(set(tasks.values())) > 1:
            each = ", ".join(f"{name!r} of {task or 'no built-in task'}" for name, task in tasks.items())
            raise InputError(f"these data sets are not of one task: {each}. Choose one with --task.")
        name = next(iter(tasks.values()))
        # An agent that is trained for goals cannot be evaluated in a task that has none.
        without_goals = self.settings.goals_from_episodes and name is not None and is_simulated(make_task(name))
        return None if without_goals else name


@dataclass(frozen=True)
class Evaluate(Command):
    """Measure how well trained agents solve their task, all from the same starts."""

    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """Folder that `mocoda train`, or `Policies.save` in Python, has written."""
    task: Annotated[Maybe[str], arg(metavar="NAME")] = None
    """Evaluate in another task than during training: cube-double:4 is OGBench's fourth."""
    episodes: int = 50
    """Number of episodes of every agent."""
    seed: Seed = 0
    device: Device = "cpu"
    out: Annotated[Maybe[Path], arg(metavar="FILE")] = None
    """JSON file for the results of every agent; evaluation.json in a folder of `mocoda train` unless given."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.agents import Policies, evaluate
        from mocoda.engine.runs import CONFIG, RunFolder, settings_of
        from mocoda.tasks import make_task

        check_device(self.device)
        if self.out is not None:
            check_target(self.out, inputs=[self.folder / "agents.json"], overwrite=self.overwrite)
        policies = Policies.load(self.folder).to(self.device)
        of_a_run = (self.folder / CONFIG).exists()  # and not of `Policies.save`, which does not know the task
        settings = settings_of(self.folder) if of_a_run else {}
        task = self.task or settings.get("task")
        if task is None:
            raise InputError(f"{str(self.folder)!r} does not say which task its agents are to solve: pass --task.")
        results = evaluate(policies, make_task(task), episodes=self.episodes, seed=self.seed)
        show(results)
        found = {**results.to_json(), "task": task, "seed": self.seed}
        if self.out is not None:
            write_json(self.out, found)
        elif of_a_run:
            with RunFolder.reopen(self.folder, ["evaluation.json"]):
                write_json(self.folder / "evaluation.json", found)
        if self.out is not None or of_a_run:
            say(f"Every agent's results: {self.out or self.folder / 'evaluation.json'}")


@dataclass(frozen=True)
class Watch(Command):
    """Film a trained agent, or the scripted expert, at its task."""

    who: Annotated[Positional[str], arg(metavar="WHO")] = "trained"
    """A folder that `mocoda train` has written, the file of a policy, or one of two words: trained (a policy that comes
    with mocoda) or expert."""
    task: str = "hooksweep2"
    """Task whose environment can draw: hooksweep2, cube-single, cube-double or cube-triple (cube-double:4 is its fourth
    official task)."""
    episodes: int = 3
    """Number of episodes to film, one after the other."""
    seed: Seed = 0
    data: Maybe[str] = None
    """In a folder: film the agent trained on this data set; the first unless given."""
    agent_seed: Maybe[int] = None
    """In a folder: film the agent trained with this seed; the first unless given."""
    out: File = Path("sweep.mp4")
    """Video to write, .mp4 or .gif."""
    overwrite: Overwrite = False

    def run(self) -> None:
        draw_without_screen()
        from mocoda.agents.film import film
        from mocoda.tasks import make_task

        check_target(self.out, inputs=[self.who], overwrite=self.overwrite)
        name, policy = self._find()
        successes = film(self.out, make_task(self.task), policy, episodes=self.episodes, seed=self.seed)
        say(f"{self.out}: {name}, {successes} of {counted(self.episodes, 'episode')} successful")

    def _find(self) -> tuple[str, Policy | None]:
        """The title of the film, and its policy; None for the expert."""
        from mocoda.agents import Policies, Policy
        from mocoda.agents.policy import shipped_policy

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
            return "a trained agent", shipped_policy(self.task)
        return self.who, None if self.who == "expert" else Policy.load(self.who)


def draw_without_screen() -> None:
    """Lets mujoco draw where there is no screen; it reads this when it is imported."""
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
