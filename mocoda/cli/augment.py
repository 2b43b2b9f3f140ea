"""The command that adds counterfactual rows, or whole counterfactual episodes, to recorded data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from mocoda.cli.options import (
    LOCAL,
    MODEL_FILES,
    Device,
    DynamicsOptions,
    EngineOptions,
    Flat,
    Maybe,
    OnData,
    Out,
    check_device,
    check_out,
    counted,
    run_folder_of,
    say,
    say_left_out,
    value_of,
)
from mocoda.cli.pages import check_page, write_page
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import PlainProgress, Progress

if TYPE_CHECKING:
    from mocoda.augmentation import Augmentation
    from mocoda.data.formats import Target
    from mocoda.data.transitions import Transitions
    from mocoda.dynamics import Dynamics
    from mocoda.engine.runs import RunFolder
    from mocoda.graph.graph_file import FileTask
    from mocoda.tasks import Task

REWARD = "reward.safetensors"
AUGMENTED = "augmented.hdf5"  # in the run folder, for formats that are not written row by row
ROWS = 160_000  # to generate, unless given
REWARDS = ("auto", "file", "learned", "none")
# Options of single transitions, and of whole episodes, with their defaults.
ROW_OPTIONS = {"rows": None, "hindsight": 0, "no-provenance": True, "max-disagreement": None, "min-support": None} | {
    "workers": None,
    "shards": None,
}
EPISODE_OPTIONS = {"length": None, "resting": 0, "turns": False}


@dataclass(frozen=True, kw_only=True)
class Augment(OnData):
    """Extend recorded data with counterfactual transitions, or with whole counterfactual episodes.

    Fits a recipe and a dynamics model to the data, then writes the recorded rows followed by new ones. After a kill,
    the same command continues. The settings of the recipe that --recipe names are options too.
    """

    kind = "recipe"

    settings: Flat[Any]
    model: Flat[DynamicsOptions]
    recipe: Annotated[str, arg(metavar="NAME")] = "mocoda"
    """How new states and actions are drawn: emp, coda, dyna, rand, mocoda, mocoda-u or mocoda-p."""
    rows: Maybe[int] = None
    """Number of transitions to generate; 160,000 unless --rows or --episodes is given."""
    episodes: Maybe[int] = None
    """Generate this many whole episodes instead: recipe coda combines two recorded ones, other recipes let the model
    continue from drawn states with recorded actions for as long as the data supports it."""
    length: Maybe[int] = None
    """With --episodes: maximum number of steps of an episode."""
    resting: float = 0.0
    """With --episodes: a factor that changes in two steps by no more than this share of its column's largest number is
    at rest, and may stay at rest in other episodes until an edge links it to something."""
    turns: bool = False
    """With --episodes and recipe coda: recorded episodes take turns, so that a new episode handles one object after
    another. A robot jumps where the turn changes."""
    device: Device = "cpu"
    keep_recorded: bool = True
    """Write the recorded rows before the new ones."""
    reward: Annotated[str, arg(metavar="NAME")] = "auto"
    """Source of the rewards: file (the graph file or the task), learned (from the rewards in the data), none, or auto:
    the first of these that is available."""
    hindsight: float = 0.0
    """Share of the rows whose goal is what they achieve. The goals of other rows are drawn."""
    provenance: bool = True
    """Write the recipe, neighbourhood, disagreement and support of each row. Without it, rows are made several times as
    fast."""
    max_disagreement: Maybe[float] = None
    """Reject rows on which the models of the ensemble disagree more, in standard deviations of a step."""
    min_support: Maybe[float] = None
    """Reject rows that are rarer than all but this share of the data."""
    workers: Maybe[int] = None
    """Number of processes that generate rows; unless given, one per core, at most 3, for large tables."""
    shards: Maybe[int] = None
    """Write a folder --out of this many Parquet files, which processes or machines make in any order. After a kill, the
    same command makes those that are missing."""
    only: Annotated[tuple[int, ...], arg(metavar="NUMBER [...]", help_behavior_hint="")] = ()
    """With --shards: make only the shards with these numbers, from 0. For clusters where each job makes some."""
    out: Out = "augmented.hdf5"
    report: Annotated[Maybe[Path], arg(metavar="FILE")] = None
    """At the end, write a page about the rows to this HTML file, as `mocoda report` does."""
    engines: Flat[EngineOptions] = LOCAL

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        from mocoda.parents import RECIPES

        return {"settings": RECIPES[value_of("recipe", words, "mocoda")](), "model": DynamicsOptions.of(words)}

    def run(self) -> None:
        from mocoda.augmentation.streaming import FINISHED, UNFINISHED, workers_for
        from mocoda.engine.runs import RunFolder

        self._check_shards()
        target = None if self.shards else check_out(self.out, (self.data, self.world.graph, self.model.model))
        folder = Path(self.out) if target is None else run_folder_of(target.path)
        if self.report is not None:
            check_page(self.report, (self.data, Path(self.out) if target is None else target.path), self.overwrite)
        self._check(folder)
        workers = workers_for(self.count, self.device) if self.workers is None else self.workers
        if workers and self.device != "cpu" and target is not None:
            raise InputError(f"workers share the CPU, and {self.device} is one device: remove --workers.")
        job = Job(self, folder)
        job.check()
        outputs = (*MODEL_FILES, REWARD, *([UNFINISHED, FINISHED, AUGMENTED] if target else self._shard_files()))
        place, wait = None if target is None else target.path, bool(self.only)
        with RunFolder(folder, "augment", job.identity, outputs, self.overwrite, place, wait) as run:
            job.fit(run.progress)
            if self.episodes is not None:
                source = self._write_episodes(job, run.progress)
            elif target is None:
                source = self._write_shards(job, workers, () if self.only else None, run.progress)
            else:
                source = self._write_rows(job, target, workers, run)
        if self.only:  # outside the lock of the folder, while other commands make theirs
            self._write_shards(job, workers, self.only, PlainProgress())
            say(f"{self.out}: {counted(len(self.only), 'shard')} of {self.shards}")
        else:
            self._report(job, source)

    @property
    def count(self) -> int:
        """Number of transitions to generate one by one."""
        return ROWS if self.rows is None else self.rows

    def _check(self, folder: Path) -> None:
        """Refuses, before any data is read, options that no data could satisfy."""
        from mocoda.augmentation.episodes import check_episodes
        from mocoda.augmentation.generation import check_options

        self.world.check()
        self.model.check(folder)
        check_device(self.device)
        self.engines.check(self.device)
        if self.count < 1:
            raise InputError(f"rows must be positive, the number of rows to generate, got {self.count}.")
        rows, episodes = "single transitions", "whole episodes"
        others, kind = (EPISODE_OPTIONS, rows) if self.episodes is None else (ROW_OPTIONS, episodes)
        if given := [f"--{name}" for name, usual in others.items() if getattr(self, _field(name)) != usual]:
            belong = episodes if self.episodes is None else rows
            hint = " Give --episodes too, or remove them." if self.episodes is None else " Remove them."
            raise InputError(f"this makes {kind}, and {' and '.join(given)} belong to {belong}.{hint}")
        if self.episodes is not None:
            check_episodes(self.settings, self.episodes, self.length, self.resting, self.turns)
        if self.reward not in REWARDS:
            raise unknown_name("reward", self.reward, REWARDS)
        if not self.settings.needs_model and self.model != DynamicsOptions.of(["--quick"] if self.model.quick else []):
            raise InputError(
                f"recipe {self.recipe!r} recombines recorded transitions and needs no dynamics model: remove --model, "
                "--dynamics and --dynamics.*."
            )
        limits = (self.max_disagreement, self.min_support)
        check_options(self.recipe, self.settings.needs_model, self.hindsight, self.provenance, *limits)

    def _check_shards(self) -> None:
        from mocoda.data.formats import FORMATS

        if self.shards is None:
            if self.only:
                raise InputError("--only chooses among shards: give --shards too, or remove it.")
            if self.engines.engine == "ray":
                raise InputError("--engine ray makes shards: give --shards, and a folder as --out.")
            return
        if not 1 <= self.shards <= self.count:
            raise InputError(f"shards must be a number from 1 to that of the rows, {self.count:,}, got {self.shards}.")
        if bad := [number for number in self.only if not 0 <= number < self.shards]:
            raise InputError(f"shards are counted from 0 to {self.shards - 1}, got --only {bad[0]}.")
        if Path(self.out).suffix in {suffix for known in FORMATS.values() for suffix in known.suffixes}:
            folder = Path(self.out).stem
            raise InputError(f"--shards writes a folder, got --out {self.out}. Name a folder, such as {folder}/.")
        if Path(self.out).exists() and not Path(self.out).is_dir():
            raise InputError(f"{self.out!r} is a file. Name another folder for the shards.")

    def _shard_files(self) -> list[str]:
        from mocoda.data.formats.shard_folder import MANIFEST, shard_name

        return [MANIFEST, *map(shard_name, range(self.shards or 0))]

    def _write_shards(
        self, job: Job, workers: int, only: Sequence[int] | None, progress: Progress
    ) -> Mapping[str, Any]:
        """Makes shards; with none to make, writes what the processes that make them need to know."""
        from mocoda.augmentation import augment_to_shards

        assert self.shards is not None
        engine = self.engines.make(workers, self.device)
        return augment_to_shards(job.folder, job, shards=self.shards, only=only, engine=engine, progress=progress)

    def _write_rows(self, job: Job, target: Target, workers: int, run: RunFolder) -> Mapping[str, Any]:
        from mocoda.augmentation import augment_to_file
        from mocoda.data import write
        from mocoda.data.transitions import Transitions

        file = target.path if target.format.streamed else job.folder / AUGMENTED
        source = augment_to_file(file, job, folder=job.folder, workers=workers, progress=run.progress)
        if not target.format.streamed:
            write(Transitions.load(file), target)
            run.discard(file.name)
        return source

    def _write_episodes(self, job: Job, progress: Progress) -> Mapping[str, Any]:
        from mocoda.augmentation import augment_episodes
        from mocoda.data import write

        assert self.episodes is not None
        made = augment_episodes(
            job.data,
            job.world.graph,
            recipe=self.settings,
            model=job.model,
            episodes=self.episodes,
            length=self.length,
            resting=self.resting,
            turns=self.turns,
            task=job.labels,
            keep_recorded=self.keep_recorded,
            seed=self.seed,
            progress=progress,
        )
        write(made, self.out)
        return made.source

    def _report(self, job: Job, source: Mapping[str, Any]) -> None:
        """Prints what was written, and writes the page about it."""
        if job.reward == "learned":
            from mocoda.augmentation import LearnedReward

            say(f"Rewards are learned from the data's own: {LearnedReward.load(job.folder / REWARD).in_words}")
        total = source["generated_rows"] + (len(job.data) if self.keep_recorded else 0)
        new = f"{source['generated_rows']:,} of them new by recipe {self.recipe}"
        new += "" if self.episodes is None else f", in {counted(self.episodes, 'episode')}"
        say(f"{self.out}: {total:,} transitions, {new}")
        say_left_out(job.data)
        if job.reward == "none":
            why = "--reward none" if self.reward == "none" else "neither the data nor the graph file has any"
            say(f"No row has a reward: {why}.")
        if "filter" in source:
            say(f"The filters accepted {100 * source['filter']['accepted_share']:.3g}% of the rows drawn.")
        for cut in source["cut"].values() if self.episodes is not None else ():
            if cut["episodes"]:
                say(f"{counted(cut['episodes'], 'new episode')} ended where {cut['why']}.")
        if self.report is not None:
            from mocoda.data import read_excerpt

            recorded = None if self.keep_recorded else job.data.to("cpu")
            made = read_excerpt(self.out, seed=self.seed)
            write_page(self.report, made, self.out, job.world, recorded=recorded, seed=self.seed)
            say(f"{self.report}: a page about them; open it in a browser")


def _field(option: str) -> str:
    return option.removeprefix("no-").replace("-", "_")


@dataclass(frozen=True)
class Job:
    """An augmentation: its options, the folder of its models, and everything that is read or fitted, each once.

    Called, it returns what to write. Other processes get the options and the folder, and read the files again.
    """

    options: Augment
    folder: Path

    def __call__(self) -> Augmentation:
        return self.plan

    def __reduce__(self) -> Any:
        return Job, (self.options, self.folder)

    @cached_property
    def data(self) -> Transitions:
        return self._read[0]

    @cached_property
    def world(self) -> Task | FileTask:
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[Transitions, Task | FileTask]:
        return self.options.read(self.options.device)

    @cached_property
    def model(self) -> Dynamics | None:
        """The trained model, for recipes that need one."""
        options = self.options
        if not options.settings.needs_model:
            return None
        return options.model.load(self.folder, self.world.graph).to(options.device)

    @cached_property
    def reward(self) -> str:
        """Which of REWARDS this data can have."""
        options, defined = self.options, getattr(self.world, "label", None) is not None
        if options.reward == "file" and not defined:
            raise InputError(
                f"{str(options.world.graph)!r} defines no reward(state, action, next_state); write one, or choose "
                "another --reward."
            )
        if options.reward == "learned" and self.data.reward is None:
            raise InputError(f"{options.data!r} has no rewards to learn from. Choose --reward none, or file.")
        if options.reward != "auto":
            return options.reward
        return "file" if defined else "learned" if self.data.reward is not None else "none"

    @cached_property
    def labels(self) -> Any:
        """What labels rows: a task, a graph file or a learned reward, with recorded goals where these draw none."""
        from mocoda.augmentation import GoalsOf, LearnedReward
        from mocoda.augmentation.generation import GoalLabels

        achieved = getattr(self.world, "achieved", None)
        if self.reward == "none":
            return None
        if self.reward == "learned":
            learned = LearnedReward.load(self.folder / REWARD).to(self.options.device)
            return learned if self.data.goal is None else GoalsOf(self.data, learned, achieved)
        if achieved is not None and not isinstance(self.world, GoalLabels):
            return GoalsOf(self.data, self.world, achieved)
        return self.world

    @cached_property
    def plan(self) -> Augmentation:
        """The table to write, piece by piece."""
        from mocoda.augmentation import Augmentation
        from mocoda.parents import fit_parents

        options, graph = self.options, self.world.graph
        parents = fit_parents(self.data, graph, options.settings, task=self.world, model=self.model, seed=options.seed)
        return Augmentation(
            self.data,
            parents,
            self.model,
            rows=options.count,
            task=self.labels,
            seed=options.seed,
            keep_recorded=options.keep_recorded,
            hindsight=options.hindsight,
            graph=graph,
            provenance=options.provenance,
            max_disagreement=options.max_disagreement,
            min_support=options.min_support,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the rows depend on."""
        from mocoda.engine.checkpoint import fingerprint

        options = self.options
        settings = options.identity(self.data, self.world, "workers", "report", "engines", "only")
        settings["rows"] = options.count if options.episodes is None else None
        if options.model.model is not None:
            weights = options.model.load(Path(), self.world.graph).weights
            settings["weights"] = fingerprint(*(weights[name] for name in sorted(weights)))  # read in any order
        return settings

    def check(self) -> None:
        """Refuses, before anything is fitted, data and graph files that lack what the options need."""
        from mocoda.augmentation.episode_walks import Walks

        options, world = self.options, self.world
        if options.recipe == "mocoda-p" and getattr(world, "features", None) is None:
            raise InputError(
                "recipe 'mocoda-p' needs to know what matters: define features(rows), and region(rows), in "
                f"{str(options.world.graph)!r}, or use 'mocoda' or 'mocoda-u'."
            )
        goals = self.data.goal is not None or getattr(world, "goals", None) is not None
        unknown = self.reward == "none" or not goals or getattr(world, "achieved", None) is None
        if options.hindsight and unknown:
            raise InputError(
                "--hindsight needs goals, and a task or a graph file that defines which goal a state reaches: "
                "achieved(state), beside reward(state, action, next_state, goal)."
            )
        if options.episodes is not None:
            Walks.of(self.data, self.world.graph)  # refuses data without episodes

    def fit(self, progress: Progress) -> None:
        """Trains the models that the folder does not have yet."""
        from mocoda.augmentation import fit_reward

        options = self.options
        if options.settings.needs_model:
            options.model.fit(self.folder, self.data, self.world.graph, options.seed, progress)
        if self.reward == "learned" and not (self.folder / REWARD).exists():
            fit_reward(self.data, seed=options.seed, progress=progress).save(self.folder / REWARD)
