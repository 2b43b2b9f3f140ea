"""The commands that add to recorded data: rewards, and counterfactual rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from mocoda.cli.dynamics import MODEL_FILES, DynamicsOptions
from mocoda.cli.engines import LOCAL, ONE_FILE, EngineOptions, ShardOptions
from mocoda.cli.options import (
    AS_IT_SAYS,
    NO_GRAPH,
    Data,
    Device,
    GraphOptions,
    Out,
    Overwrite,
    ReadOptions,
    Seed,
    check_device,
    check_out,
    content_of,
    counted,
    run_folder_of,
    say,
    say_left_out,
)
from mocoda.cli.parser import Command, Flat, value_of
from mocoda.cli.report import check_page, write_page
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import PlainProgress, Progress

if TYPE_CHECKING:
    from mocoda.augmentation import Augmentation, LearnedReward
    from mocoda.data.transitions import Transitions
    from mocoda.graph.graph_file import FileTask
    from mocoda.tasks import Task

REWARD = "reward.safetensors"
AUGMENTED = "augmented.hdf5"  # in the run folder, for formats that are not written row by row
ROWS = 160_000  # to generate, unless given
REWARDS = ("auto", "file", "learned", "none")


@dataclass(frozen=True)
class Augment(Command):
    """Extend recorded data with counterfactual transitions, or whole episodes of them.

    Fits a recipe and a dynamics model to the data, and writes the recorded rows and new ones after them. After a kill,
    the same command goes on where it was. The fields of the recipe that --recipe names are options too.
    """

    kind = "recipe"

    data: Data
    settings: Flat[Any]
    model: Flat[DynamicsOptions]
    recipe: Annotated[str, arg(metavar="NAME")] = "mocoda"
    """How new states and actions are drawn: {recipes}."""
    reading: Flat[ReadOptions] = AS_IT_SAYS
    world: Flat[GraphOptions] = NO_GRAPH
    rows: int | None = None
    """Transitions to generate; without it, and without --episodes, 160,000."""
    episodes: int | None = None
    """Whole episodes to generate instead: with recipe coda each is made of two recorded ones, with others by the model,
    from drawn starts and with recorded actions, as far as the data supports them."""
    length: int | None = None
    """With --episodes, the most steps of each."""
    resting: float = 0.0
    """With --episodes, what changes in two steps by no more than this share of its column's largest number is at rest,
    and rests in other episodes too, until something links to it."""
    turns: bool = False
    """With --episodes and recipe coda: what recorded episodes handle, in turns; a robot jumps where these change."""
    seed: Seed = 0
    device: Device = "cpu"
    keep_recorded: bool = True
    """Write the recorded rows before the new ones."""
    reward: Annotated[str, arg(metavar="NAME")] = "auto"
    """Where rewards come from: file (what the graph file or the task defines), learned (from the data's rewards), none,
    or auto, the first of these that there is."""
    hindsight: float = 0.0
    """Share of the rows whose goal is what they achieve. The goals of the others are drawn."""
    provenance: bool = True
    """Note recipe, neighbourhood, disagreement and support of each row. Several times as fast without."""
    max_disagreement: float | None = None
    """Reject rows on which the ensemble disagrees more, in standard deviations of a step."""
    min_support: float | None = None
    """Reject rows that are rarer than all but this share of the data."""
    workers: int | None = None
    """Processes that generate rows; without it one per core, at most 3, if there is much to do."""
    sharding: Flat[ShardOptions] = ONE_FILE
    engines: Flat[EngineOptions] = LOCAL
    out: Out = "augmented.hdf5"
    report: Annotated[Path | None, arg(metavar="FILE")] = None
    """At the end, write a page about the rows to this HTML file, as `mocoda report` does."""
    overwrite: Overwrite = False

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        from mocoda.parents import RECIPES

        return {"settings": RECIPES[value_of("--recipe", words, "mocoda")](), "model": DynamicsOptions.of(words)}

    @property
    def choice(self) -> str:
        return str(self.settings.name)

    def run(self) -> None:
        from mocoda.augmentation.episode_walks import Walks
        from mocoda.augmentation.streaming import FINISHED, UNFINISHED, augment_to_file, workers_for
        from mocoda.data.formats import convert
        from mocoda.engine.runs import RunFolder

        shards = self.sharding.folder(self.out, self.count)
        inputs = (self.data, self.world.graph, self.model.model)
        target = check_out(self.out, inputs) if shards is None else None
        folder = shards or run_folder_of(Path(self.out) if target is None else target.path)
        if self.report is not None:
            check_page(self.report, (self.data, Path(self.out) if target is None else target.path), self.overwrite)
        self._check(folder)
        workers = workers_for(self.count, self.device) if self.workers is None else self.workers
        if workers and self.device != "cpu" and shards is None:
            raise InputError(f"workers share the CPU, and {self.device} is one device: remove --workers.")
        recorded = self._recorded()
        world = self.world.load(recorded, self.data)
        if self.recipe == "mocoda-p" and getattr(world, "features", None) is None:
            raise InputError(
                "recipe 'mocoda-p' needs to know what matters: define features(rows), and region(rows), in "
                f"{str(self.world.graph)!r}, or use 'mocoda' or 'mocoda-u'."
            )
        labels = self._reward_source(recorded, world)
        settings = self._identity(recorded, world)
        files = (UNFINISHED, FINISHED, AUGMENTED) if shards is None else self.sharding.outputs()
        outputs = (*MODEL_FILES, REWARD, *files)
        if self.episodes is not None:
            Walks.of(recorded)  # which refuses data without episodes
        place, wait = None if target is None else target.path, bool(self.sharding.only)
        with RunFolder(folder, "augment", settings, outputs, self.overwrite, place, wait) as run:
            self._fit(recorded, folder, run.progress)
            if labels == "learned":
                from mocoda.augmentation import LearnedReward

                say(f"Rewards are learned from the data's own: {LearnedReward.load(folder / REWARD).in_words}")
            if self.episodes is not None:
                source = self._write_episodes(recorded, world, folder, run.progress)
            elif target is None:
                source = self.sharding.write(self, folder, workers, run.progress)
            else:
                file = target.path if target.streamed else folder / AUGMENTED
                source = augment_to_file(
                    file, self.planned(folder), folder=folder, workers=workers, progress=run.progress
                )
                if not target.streamed:
                    convert(file, target)
                    run.discard(file.name)
        if self.sharding.only:
            self.sharding.write_own(self, folder, workers)
            say(f"{self.out}: {counted(len(self.sharding.only), 'shard')} of {self.sharding.shards}")
            return
        total = source["generated_rows"] + (len(recorded) if self.keep_recorded else 0)
        new = f"{source['generated_rows']:,} of them new by recipe {self.recipe}"
        new += "" if self.episodes is None else f", in {counted(self.episodes, 'episode')}"
        say(f"{self.out}: {total:,} transitions, {new}")
        say_left_out(recorded)
        if labels == "none":
            why = "--reward none" if self.reward == "none" else "neither the data nor the graph file has any"
            say(f"No row has a reward: {why}.")
        if "filter" in source:
            say(f"The filters accepted {100 * source['filter']['accepted_share']:.3g}% of the rows drawn.")
        for cut in source["cut"].values() if self.episodes is not None else ():
            if cut["episodes"]:
                say(f"{counted(cut['episodes'], 'new episode')} ended where {cut['why']}.")
        if self.report is not None:
            write_page(self.report, self.out, world, None if self.keep_recorded else recorded, self.seed)

    @property
    def count(self) -> int:
        """Transitions to generate one by one."""
        return ROWS if self.rows is None else self.rows

    def _write_episodes(
        self, data: Transitions, world: Task | FileTask, folder: Path, progress: Progress
    ) -> Mapping[str, Any]:
        """Writes recorded and new episodes, by the models in the folder; returns how they were made."""
        from mocoda.augmentation import augment_episodes
        from mocoda.data import write

        assert self.episodes is not None
        made = augment_episodes(
            data,
            world.graph,
            recipe=self.settings,
            model=self.model.load(folder, world.graph).to(self.device) if self.settings.needs_model else None,
            episodes=self.episodes,
            length=self.length,
            resting=self.resting,
            turns=self.turns,
            task=self._labels(data, world, folder),
            keep_recorded=self.keep_recorded,
            seed=self.seed,
            progress=progress,
        )
        write(made, self.out)
        return made.source

    def planned(self, folder: Path) -> Callable[[], Augmentation]:
        """`plan`, for other processes."""
        return partial(self.plan, folder)

    def plan(self, folder: Path) -> Augmentation:
        """What to write, by the models in the folder. Every process that generates rows calls it."""
        from mocoda.augmentation import Augmentation
        from mocoda.parents import fit_parents

        data = self._recorded()
        world = self.world.load(data, self.data)
        model = self.model.load(folder, world.graph).to(self.device) if self.settings.needs_model else None
        return Augmentation(
            data,
            fit_parents(data, world.graph, self.settings, task=world, model=model, seed=self.seed),
            model,
            rows=self.count,
            task=self._labels(data, world, folder),
            seed=self.seed,
            keep_recorded=self.keep_recorded,
            hindsight=self.hindsight,
            graph=world.graph,
            provenance=self.provenance,
            max_disagreement=self.max_disagreement,
            min_support=self.min_support,
        )

    def _check(self, folder: Path) -> None:
        """Refuses, before anything is read, what no data could satisfy."""
        from mocoda.augmentation.generation import check_options

        self.world.check()
        self.model.check(folder)
        check_device(self.device)
        self.engines.check(self.device)
        if self.engines.spread and self.sharding.shards is None:
            raise InputError("--engine ray makes shards: give --shards, and a folder as --out.")
        if self.count < 1:
            raise InputError(f"rows must be positive, the number of rows to generate, got {self.count}.")
        self._check_episodes()
        if self.reward not in REWARDS:
            raise unknown_name("reward", self.reward, REWARDS)
        if not self.settings.needs_model and self.model != DynamicsOptions.of(["--quick"] if self.model.quick else []):
            raise InputError(
                f"recipe {self.recipe!r} recombines recorded transitions and asks no dynamics model: remove --model, "
                "--architecture and --dynamics.*."
            )
        check_options(
            self.recipe,
            self.settings.needs_model,
            self.hindsight,
            self.provenance,
            self.max_disagreement,
            self.min_support,
        )

    def _check_episodes(self) -> None:
        from mocoda.augmentation.episodes import check_episodes

        if self.episodes is None:
            for name, given in (("length", self.length is not None), ("resting", self.resting), ("turns", self.turns)):
                if given:
                    raise InputError(f"--{name} is for whole episodes: give --episodes too, or remove it.")
            return
        misplaced = {
            "--rows": self.rows is not None,
            "--hindsight": self.hindsight != 0,
            "--no-provenance": not self.provenance,
            "--max-disagreement": self.max_disagreement is not None,
            "--min-support": self.min_support is not None,
            "--workers": self.workers is not None,
            "--shards": self.sharding.shards is not None,
        }
        if refused := [option for option, is_given in misplaced.items() if is_given]:
            raise InputError(
                f"--episodes makes whole episodes: remove {' and '.join(refused)}, which belong to single transitions."
            )
        check_episodes(self.settings, self.episodes, self.length, self.resting, self.turns)

    def _identity(self, recorded: Transitions, world: Task | FileTask) -> dict[str, Any]:
        """All that the rows depend on."""
        from mocoda.engine.checkpoint import fingerprint

        no_matter = ("workers", "out", "report", "overwrite", "engines", "sharding")
        settings = {name: value for name, value in asdict(self).items() if name not in no_matter}
        if self.sharding.shards is not None:
            settings["shards"] = self.sharding.shards
        settings["rows"] = self.count if self.episodes is None else None
        settings |= {"content": content_of(recorded), "graph_file": getattr(world, "fingerprint", None)}
        if self.model.model is not None:
            weights = self.model.load(Path(), world.graph).weights
            settings["weights"] = fingerprint(*(weights[name] for name in sorted(weights)))  # read in any order
        return settings

    def _recorded(self) -> Transitions:
        return self.reading.read(self.data).to(self.device)

    def _reward_source(self, data: Transitions, world: Task | FileTask) -> str:
        """Which of REWARDS holds for this data."""
        defined = getattr(world, "label", None) is not None
        if self.reward == "file" and not defined:
            raise InputError(
                f"{str(self.world.graph)!r} defines no reward(state, action, next_state); write one, or choose another "
                "--reward."
            )
        if self.reward == "learned" and data.reward is None:
            raise InputError(f"{self.data!r} has no rewards to learn from. Choose --reward none, or file.")
        source = self.reward
        if source == "auto":
            source = "file" if defined else "learned" if data.reward is not None else "none"
        goals = data.goal is not None or getattr(world, "goals", None) is not None
        if self.hindsight and (source == "none" or not goals or getattr(world, "achieved", None) is None):
            raise InputError(
                "--hindsight needs goals, and a task or a graph file that defines which goal a state reaches: "
                "achieved(state), beside reward(state, action, next_state, goal)."
            )
        return source

    def _fit(self, data: Transitions, folder: Path, progress: Progress) -> None:
        """Trains what the folder lacks."""
        from mocoda.augmentation import fit_reward

        world = self.world.load(data, self.data)
        if self.settings.needs_model:
            self.model.fit(folder, data, world.graph, self.seed, progress)
        if self._reward_source(data, world) == "learned" and not (folder / REWARD).exists():
            fit_reward(data, seed=self.seed, progress=progress).save(folder / REWARD)

    def _labels(self, data: Transitions, world: Task | FileTask, folder: Path) -> Any:
        from mocoda.augmentation import LearnedReward

        source = self._reward_source(data, world)
        if source == "none":
            return None
        learned = LearnedReward.load(folder / REWARD).to(self.device) if source == "learned" else None
        return labels_of(data, world, learned)


def labels_of(data: Transitions, world: Task | FileTask, learned: LearnedReward | None) -> Any:
    """What labels rows: a task, a graph file or a learned reward, with the recorded goals where these draw none."""
    from mocoda.augmentation import GoalsOf
    from mocoda.augmentation.generation import GoalLabels

    achieved = getattr(world, "achieved", None)
    if learned is not None:
        return learned if data.goal is None else GoalsOf(data, learned, achieved)
    if achieved is not None and not isinstance(world, GoalLabels):
        return GoalsOf(data, world, achieved)
    return world


@dataclass(frozen=True)
class Label(Command):
    """Label recorded data with the rewards of a task, a graph file or other labelled data.

    Rows keep their goals. Where the reward is about goals and the data has none, the task draws them.
    """

    data: Data
    reading: Flat[ReadOptions] = AS_IT_SAYS
    world: Flat[GraphOptions] = NO_GRAPH
    reward_from: Annotated[str | None, arg(metavar="DATA")] = None
    """Learn the reward from this data, with the same columns and with rewards, instead."""
    hindsight: float = 0.0
    """Share of the rows whose goal becomes what they achieve."""
    seed: Seed = 0
    out: Out = "labelled.hdf5"
    overwrite: Overwrite = False

    def run(self) -> None:
        from mocoda.augmentation import fit_reward, label
        from mocoda.data import read, write

        check_out(self.out, (self.data, self.world.graph, self.reward_from), self.overwrite)
        if self.reward_from is not None and (self.world.graph, self.world.task) != (None, None):
            raise InputError("--reward-from, --graph and --task each define the reward; give one of them.")
        if not 0 <= self.hindsight <= 1:
            raise InputError(f"hindsight must be a share of the rows between 0 and 1, got {self.hindsight}.")
        self.world.check()
        recorded = self.reading.read(self.data)
        labels: Any
        if self.reward_from is not None:
            labels = fit_reward(read(self.reward_from), seed=self.seed, progress=PlainProgress())
            say(f"The reward is learned: {labels.in_words}")
        else:
            labels = self.world.load(recorded, self.data)
        labelled = label(recorded, labels, seed=self.seed, hindsight=self.hindsight)
        write(labelled, self.out)
        assert labelled.reward is not None
        low, high = float(labelled.reward.min()), float(labelled.reward.max())
        ends = int(labelled.terminal.sum())
        say(f"{self.out}: {len(labelled):,} transitions with rewards from {low:g} to {high:g}, {ends:,} terminal")
