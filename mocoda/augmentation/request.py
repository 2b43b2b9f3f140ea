"""plain values -> Augmentation: what a command line asks for, so that any process can be told, and fit it alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocoda import dynamics
from mocoda.augmentation.generation import Augmentation, check_options
from mocoda.augmentation.rewards import GoalLabels, GoalsOf, LearnedReward, fit_reward
from mocoda.data.formats import read
from mocoda.data.transitions import Transitions
from mocoda.dynamics.mechanisms import ARCHITECTURES
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import Progress
from mocoda.graph.graph_file import FileTask, load_task
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import RECIPES, fit_parents, make_recipe
from mocoda.tasks import TASKS, Task, make_task

DYNAMICS, REWARD = "dynamics.safetensors", "reward.safetensors"
REWARDS = ("learned", "file", "none")


def check_world(graph: str | Path | None, task: str | None) -> None:
    """Refuses, before any data is read, what `world_of` could not use."""
    if graph is not None and task is not None:
        raise InputError("--graph and --task both say who listens to whom; give one of them.")
    if task is not None:
        make_task(task)


def world_of(data: Transitions, name: str, graph: str | Path | None, task: str | None) -> Task | FileTask:
    """What knows the graph of data called `name`: the file, the task, or else the task that it was recorded in."""
    if graph is not None:
        return load_task(graph, data)
    task = task or recorded_in(data)
    if task is None:
        raise InputError(
            f"nothing says who listens to whom in {name!r}: pass --graph with a file that does, or --task for "
            f"data of a built-in one ({', '.join(TASKS)})."
        )
    return make_task(task)


def recorded_in(data: Transitions) -> str | None:
    """The built-in task that data says it is of."""
    name = str(data.source.get("task"))
    return name if name.partition(":")[0] in TASKS else None


def fit_in(
    folder: Path, data: Transitions, graph: LocalGraph, architecture: str, seed: int, progress: Progress
) -> None:
    """Trains the dynamics that the folder lacks, and goes on where an earlier training was killed."""
    model, checkpoint = folder / DYNAMICS, folder / "checkpoint.safetensors"
    if not model.exists():
        dynamics.fit_dynamics(data, graph, architecture, seed=seed, progress=progress, checkpoint=checkpoint).save(
            model
        )
        checkpoint.unlink(missing_ok=True)


def dynamics_in(place: str | Path, graph: LocalGraph) -> dynamics.Dynamics:
    """The dynamics that a run left in its folder, or in a file."""
    place = Path(place)
    return dynamics.Dynamics.load(place / DYNAMICS if place.is_dir() else place, graph)


@dataclass(frozen=True)
class Request:
    """Data, a graph file or a built-in task, a recipe, labels and filters; see `mocoda augment --help`."""

    data: str
    graph: str | None
    task: str | None
    recipe: str
    architecture: str
    model: str | None  # a file or a run folder with dynamics; None: they are trained
    rows: int
    seed: int
    device: str
    keep_recorded: bool
    stratified: bool
    reward: str | None  # one of REWARDS; None: the file's or the task's if it has one, else learned from the data's
    hindsight: float
    provenance: bool
    max_disagreement: float | None
    min_support: float | None

    def check(self) -> None:
        """Refuses, before anything is read, what no data could satisfy."""
        check_world(self.graph, self.task)
        if self.rows < 1:
            raise InputError(f"rows must be positive, the number of rows to generate, got {self.rows}.")
        RECIPES[self.recipe]  # or it says which there are
        if self.architecture not in ARCHITECTURES:
            raise unknown_name("architecture", self.architecture, ARCHITECTURES)
        if self.model is not None and not self._asks:
            raise InputError(f"--model gives next states, and recipe {self.recipe!r} has its own; leave it away.")
        if self.reward is not None and self.reward not in REWARDS:
            raise unknown_name("reward", self.reward, REWARDS)
        if self.stratified and not self.recipe.startswith("mocoda"):
            raise InputError(f"--stratified is about mixtures, and recipe {self.recipe!r} has none; leave it away.")
        limits = {"max_disagreement": self.max_disagreement, "min_support": self.min_support}
        check_options(self.recipe, self._asks, self.hindsight, self.provenance, **limits)

    def recorded(self) -> Transitions:
        return read(self.data).to(self.device)

    def world(self, data: Transitions) -> Task | FileTask:
        return world_of(data, self.data, self.graph, self.task)

    def labelled_by(self, data: Transitions, world: Task | FileTask) -> str:
        """Where rewards come from: "task", or one of REWARDS."""
        given = getattr(world, "label", None) is not None
        if self.reward == "file" and not given:
            raise InputError(
                f"{self.graph!r} defines no reward(state, action, next_state); write one, or choose another."
            )
        if self.reward == "learned" and data.reward is None:
            raise InputError(f"{self.data!r} has no rewards to learn from. Choose --reward none, or file.")
        how = self.reward or ("file" if given else "learned" if data.reward is not None else "none")
        goals = data.goal is not None or getattr(world, "goals", None) is not None
        if self.hindsight and (how == "none" or not goals or getattr(world, "achieved", None) is None):
            raise InputError(
                "--hindsight needs goals, and a task or a graph file that says which goal a state reaches: "
                "achieved(state), beside reward(state, action, next_state, goal)."
            )
        return "task" if how == "file" and self.graph is None else how

    def fit(self, data: Transitions, folder: Path, progress: Progress) -> None:
        """Trains what the folder lacks."""
        world = self.world(data)
        if self._asks and self.model is None:
            fit_in(folder, data, world.graph, self.architecture, self.seed, progress)
        reward = folder / REWARD
        if self.labelled_by(data, world) == "learned" and not reward.exists():
            fit_reward(data, seed=self.seed, progress=progress).save(reward)

    def plan(self, folder: Path, data: Transitions | None = None) -> Augmentation:
        """What to write, by the models in the folder."""
        data = self.recorded() if data is None else data
        world = self.world(data)
        model = None
        if self._asks:
            model = dynamics_in(self.model or folder, world.graph).to(self.device)
        recipe = make_recipe(self.recipe, **({"stratified": True} if self.stratified else {}))
        parents = fit_parents(data, world.graph, recipe, seed=self.seed, task=self.hints(world), model=model)
        return Augmentation(
            data,
            parents,
            model,
            rows=self.rows,
            task=self._labels(data, world, folder),
            seed=self.seed,
            keep_recorded=self.keep_recorded,
            hindsight=self.hindsight,
            graph=world.graph,
            provenance=self.provenance,
            max_disagreement=self.max_disagreement,
            min_support=self.min_support,
        )

    @property
    def _asks(self) -> bool:
        """Whether the recipe asks a model; the others recombine recorded transitions."""
        return RECIPES[self.recipe].needs_model

    def hints(self, world: Task | FileTask) -> Task | FileTask:
        """What the recipe may ask of the task."""
        if self.recipe == "mocoda-p" and world.features is None:
            raise InputError(
                f"recipe 'mocoda-p' needs to know what matters: define features(rows), and region(rows), in "
                f"{self.graph!r}, or use 'mocoda' or 'mocoda-u'."
            )
        return world

    def _labels(self, data: Transitions, world: Task | FileTask, folder: Path) -> Any:
        how = self.labelled_by(data, world)
        achieved = getattr(world, "achieved", None)
        if how == "none":
            return None
        if how == "learned":
            learned = LearnedReward.load(folder / REWARD).to(self.device)
            return learned if data.goal is None else GoalsOf(data, learned, achieved)
        if achieved is not None and not isinstance(world, GoalLabels):  # a file about goals, which draws none
            return GoalsOf(data, world, achieved)
        return world
