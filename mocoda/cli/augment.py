"""The command that adds counterfactual rows, or whole counterfactual episodes, to recorded data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from mocoda import augmentation
from mocoda.augmentation import Augmentation, GoalsOf, LearnedReward
from mocoda.augmentation.episode_walks import Walks
from mocoda.augmentation.episodes import check_episodes
from mocoda.augmentation.generation import GoalLabels, check_options
from mocoda.augmentation.streaming import FINISHED, UNFINISHED, check_shards, workers_for
from mocoda.cli import options as opt
from mocoda.cli.options import counted, say
from mocoda.cli.pages import check_page, write_page
from mocoda.data import read_excerpt, write
from mocoda.data.formats import FORMATS, Target, target_of
from mocoda.data.formats.shard_folder import MANIFEST, shard_name
from mocoda.data.transitions import Transitions
from mocoda.data.where import Condition
from mocoda.dynamics import Dynamics
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.progress import PlainProgress, Progress
from mocoda.engine.runs import RunFolder
from mocoda.engine.workers import one_thread
from mocoda.graph.graph_file import FileTask
from mocoda.parents import RECIPES, Parents, fit_parents
from mocoda.tasks import Task

REWARD = "reward.safetensors"
AUGMENTED = "augmented.hdf5"  # in the run folder, for formats that are not written row by row
ROWS = 160_000  # to generate, unless given
FOR_ROWS = ("rows", "where", "hindsight", "provenance", "max_disagreement", "min_support", "workers", "shards")
FOR_EPISODES = ("length", "resting", "turns")


@dataclass(frozen=True, kw_only=True)
class Augment(opt.OnData):
    """Extend recorded data with counterfactual transitions, or with whole counterfactual episodes.

    Fits a recipe and a dynamics model to the data, then writes the recorded rows followed by new ones. After a kill,
    the same command continues. The settings of the recipe that --recipe names are options too.
    """

    kind = "recipe"

    settings: opt.Flat[Any]
    model: opt.Flat[Any]  # DynamicsOptions; None for recipes that need no model
    recipe: opt.Name = "mocoda"
    """How new states and actions are drawn: emp, coda, dyna, rand, mocoda, mocoda-u or mocoda-p."""
    rows: opt.Maybe[int] = None
    """Number of transitions to generate; 160,000 unless --rows or --episodes is given."""
    where: opt.Conditions = ()
    """Generate only transitions that meet all of these conditions on columns of the state and the action, such as
    'box1.x > 1.9 and box2.x > 1.9'. No recorded row need meet them, as long as recorded parts do."""
    episodes: opt.Maybe[int] = None
    """Generate this many whole episodes instead: recipe coda combines two recorded ones, other recipes let the model
    continue from drawn states with recorded actions for as long as the data supports it."""
    length: opt.Maybe[int] = None
    """With --episodes: maximum number of steps of an episode."""
    resting: float = 0.0
    """With --episodes: a factor that changes in two steps by no more than this share of its column's largest number is
    at rest, and may stay at rest in other episodes until an edge links it to something."""
    turns: opt.Flag = False
    """With --episodes and recipe coda: recorded episodes take turns, so that a new episode handles one object after
    another. A robot jumps where the turn changes."""
    device: opt.Device = "cpu"
    keep_recorded: bool = True
    """Write the recorded rows before the new ones."""
    reward: Literal["auto", "file", "learned", "none"] = "auto"
    """Source of the rewards: file (the graph file or the task), learned (from the rewards in the data), none, or auto:
    the first of these that is available."""
    hindsight: float = 0.0
    """Share of the rows whose goal is what they achieve. The goals of other rows are drawn."""
    provenance: bool = True
    """Write the recipe, neighbourhood, disagreement, support and donors of each row. Without it, rows come faster."""
    max_disagreement: opt.Maybe[float] = None
    """Reject rows on which the models of the ensemble disagree more, in standard deviations of a step."""
    min_support: opt.Maybe[float] = None
    """Reject rows that are rarer than all but this share of the data."""
    workers: opt.Maybe[int] = None
    """Number of processes that generate rows; unless given, one per free core, at most 3, for large tables."""
    shards: opt.Maybe[int] = None
    """Write a folder --out of this many Parquet files, which processes or machines make in any order. After a kill, the
    same command makes those that are missing."""
    only: opt.Numbers = ()
    """With --shards: make only the shards with these numbers, from 0. For clusters where each job makes some."""
    out: opt.Out = "augmented.hdf5"
    report: opt.MaybeFile = None
    """At the end, write a page about the rows to this HTML file, as `mocoda report` does."""
    engines: opt.Flat[opt.EngineOptions] = opt.LOCAL

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        recipe = RECIPES[opt.value_of("recipe", words, cls.recipe)]
        return {"settings": recipe(), "model": opt.DynamicsOptions.of(words) if recipe.needs_model else None}

    def __getstate__(self) -> dict[str, Any]:
        """Another process gets the options, and reads the files again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def run(self) -> None:
        self._check()
        target = None if self.shards else opt.check_out(self.out, (self.data, self.world.graph))
        if self.report is not None:
            check_page(self.report, (self.data, self.out), self.overwrite)
        workers = workers_for(self.count, self.device) if self.workers is None else self.workers
        if workers and self.device != "cpu" and target is not None:
            raise InputError(f"workers share the CPU, and {self.device} is one device: remove --workers.")
        self._check_contents()
        shards = [MANIFEST, *map(shard_name, range(self.shards or 0))]
        outputs = (*opt.MODEL_FILES, REWARD, *([UNFINISHED, FINISHED, AUGMENTED] if target else shards))
        place, wait = None if target is None else target.path, bool(self.only)
        with RunFolder(self.folder, "augment", self.settings_of_run, outputs, self.overwrite, place, wait) as run:
            if self.where and self.recipe != "dyna":  # whose rows are its model's
                self._say_region()
            self._fit(run.progress)
            if self.episodes is not None:
                source = self._write_episodes(run.progress)
            elif target is None:
                source = self._write_shards(workers, () if self.only else None, run.progress)
            else:
                source = self._write_rows(target, workers, run)
        if self.only:  # outside the lock of the folder, while other commands make theirs
            self._write_shards(workers, self.only, PlainProgress())
            say(f"{self.out}: {counted(len(self.only), 'shard')} of {self.shards}")
        else:
            self._describe(source)

    # Checks

    def _check(self) -> None:
        """Refuses, before any data is read, options that no data could satisfy."""
        self.engines.check(self.device)
        for text in self.where:
            Condition(text)
        others = FOR_EPISODES if self.episodes is None else FOR_ROWS
        if given := [f"--{name.replace('_', '-')}" for name in others if getattr(self, name) != getattr(Augment, name)]:
            kinds = ("whole episodes", "single transitions")
            belong, made = kinds if self.episodes is None else kinds[::-1]
            hint = "Give --episodes too, or remove them." if self.episodes is None else "Remove them."
            verb = "belongs" if len(given) == 1 else "belong"
            raise InputError(f"this makes {made}, and {' and '.join(given)} {verb} to {belong}. {hint}")
        if self.count < 1:
            raise InputError(f"rows must be positive, the number of rows to generate, got {self.count}.")
        self._check_shards()
        if self.model is not None:
            self.model.check(self.folder)
        if self.episodes is not None:
            check_episodes(self.settings, self.episodes, self.length, self.resting, self.turns)
        limits = (self.max_disagreement, self.min_support)
        check_options(self.recipe, self.settings.needs_model, self.hindsight, self.provenance, *limits)

    def _check_shards(self) -> None:
        if self.shards is not None:
            check_shards(self.shards, self.only, self.count)
            if self.folder.suffix in {suffix for known in FORMATS.values() for suffix in known.suffixes}:
                raise InputError(f"--shards writes a folder. Name one, such as {self.folder.stem}/, got {self.out!r}.")
        elif self.only:
            raise InputError("--only chooses among shards: give --shards too, or remove it.")
        elif self.engines.engine == "ray":
            raise InputError("--engine ray makes shards: give --shards, and a folder as --out.")

    def _check_contents(self) -> None:
        """Refuses, before anything is fitted, data and graph files that lack what the options need."""
        if self.recipe == "mocoda-p" and getattr(self.task, "features", None) is None:
            raise InputError(
                "recipe 'mocoda-p' needs to know what matters: define features(rows), and region(rows), in "
                f"{str(self.world.graph)!r}, or use 'mocoda' or 'mocoda-u'."
            )
        goals = self.recorded.goal is not None or getattr(self.task, "goals", None) is not None
        unknown = self.rewards == "none" or not goals or getattr(self.task, "achieved", None) is None
        if self.hindsight and unknown:
            raise InputError(
                "--hindsight needs goals, and a task or a graph file that defines which goal a state reaches: "
                "achieved(state), beside reward(state, action, next_state, goal)."
            )
        self.task.graph.check_constraints(self.recorded)
        if self.episodes is not None:
            Walks.of(self.recorded, self.task.graph)  # refuses data without episodes

    # What is read or fitted, each once

    @property
    def count(self) -> int:
        """Number of transitions to generate one by one."""
        return ROWS if self.rows is None else self.rows

    @property
    def folder(self) -> Path:
        """The run folder, which has the trained models and, with --shards, the rows."""
        return Path(self.out) if self.shards else opt.run_folder_of(target_of(self.out).path)

    @cached_property
    def _read(self) -> tuple[Transitions, Task | FileTask]:
        return self.read(self.device)

    @property
    def recorded(self) -> Transitions:
        return self._read[0]

    @property
    def task(self) -> Task | FileTask:
        return self._read[1]

    @cached_property
    def asks_model(self) -> bool:
        """Whether any next state may have to be predicted."""
        if self.model is None:
            return False
        told = self.recipe == "dyna" or any(x is not None for x in (self.episodes, self.max_disagreement))
        own = self.model.model is not None or getattr(self.model.dynamics, "architecture", None) == "full"
        return told or own or not augmentation.follows_recorded(self.parents)

    @cached_property
    def trained(self) -> Dynamics | None:
        """The trained model, if one is needed."""
        if self.model is None or not self.asks_model:
            return None
        trained: Dynamics = self.model.load(self.folder, self.task.graph).to(self.device)
        return trained

    @cached_property
    def parents(self) -> Parents:
        """Where new states and actions come from."""
        task, model = self.task, self.trained if self.recipe == "dyna" else None
        region = " and ".join(f"({one})" for one in self.where) or None
        with one_thread():
            return fit_parents(
                self.recorded, task.graph, self.settings, task=task, model=model, region=region, seed=self.seed
            )

    @cached_property
    def rewards(self) -> str:
        """The source of the rewards that this data can have: file, learned or none."""
        defined = getattr(self.task, "label", None) is not None
        if self.reward == "file" and not defined:
            raise InputError(
                f"{str(self.world.graph)!r} defines no reward(state, action, next_state); write one, or choose "
                "another --reward."
            )
        if self.reward == "learned" and self.recorded.reward is None:
            raise InputError(f"{self.data!r} has no rewards to learn from. Choose --reward none, or file.")
        if self.reward != "auto":
            return self.reward
        return "file" if defined else "learned" if self.recorded.reward is not None else "none"

    @cached_property
    def labels(self) -> Any:
        """What labels rows: a task, a graph file or a learned reward, with recorded goals where these draw none."""
        achieved = getattr(self.task, "achieved", None)
        if self.rewards == "none":
            return None
        if self.rewards == "learned":
            learned = LearnedReward.load(self.folder / REWARD).to(self.device)
            return learned if self.recorded.goal is None else GoalsOf(self.recorded, learned, achieved)
        if achieved is not None and not isinstance(self.task, GoalLabels):
            return GoalsOf(self.recorded, self.task, achieved)
        return self.task

    @property
    def settings_of_run(self) -> dict[str, Any]:
        """Everything that the rows depend on."""
        settings = self.identity(self.recorded, self.task, "workers", "report", "engines", "only")
        settings["rows"] = self.count if self.episodes is None else None
        if not self.where:
            del settings["where"]  # folders without a region stay valid if they were begun without the option
        if self.model is not None and self.model.model is not None:
            weights = self.model.load(Path(), self.task.graph).weights
            settings["weights"] = fingerprint(*(weights[name] for name in sorted(weights)))  # read in any order
        return settings

    def _fit(self, progress: Progress) -> None:
        """Trains the models that the folder does not have yet."""
        if self.model is not None and self.asks_model:
            self.model.fit(self.folder, self.recorded, self.task.graph, self.seed, progress)
        if self.rewards == "learned" and not (self.folder / REWARD).exists():
            augmentation.fit_reward(self.recorded, seed=self.seed, progress=progress).save(self.folder / REWARD)

    def _say_region(self) -> None:
        """Says what the data can support of a region, before anything takes long."""
        region = getattr(self.parents, "source", {})["region"]
        counts = ", ".join(f"{rows:,} have {text}" for text, rows in region["recorded"].items())
        share = 100 * region["accepted_share"]
        say(f"Of {len(self.recorded):,} recorded rows, {counts}. Of rows drawn for it, {share:.3g}% are in the region.")

    def plan(self) -> Augmentation:
        """The table to write, piece by piece."""
        data, graph, model = self.recorded, self.task.graph, self.trained
        return Augmentation(
            data,
            self.parents,
            model,
            rows=self.count,
            task=self.labels,
            seed=self.seed,
            keep_recorded=self.keep_recorded,
            hindsight=self.hindsight,
            graph=graph,
            provenance=self.provenance,
            max_disagreement=self.max_disagreement,
            min_support=self.min_support,
        )

    # What is written

    def _write_shards(self, workers: int, only: Sequence[int] | None, progress: Progress) -> Mapping[str, Any]:
        """Makes shards; with none to make, writes what the processes that make them need to know."""
        engine, shards = self.engines.make(workers, self.device), self.shards or 1
        return augmentation.augment_to_shards(
            self.folder, self.plan, shards=shards, only=only, engine=engine, progress=progress
        )

    def _write_rows(self, target: Target, workers: int, run: RunFolder) -> Mapping[str, Any]:
        file = target.path if target.format.streamed else self.folder / AUGMENTED
        source = augmentation.augment_to_file(
            file, self.plan, folder=self.folder, workers=workers, progress=run.progress
        )
        if not target.format.streamed:
            write(Transitions.load(file), target)
            run.discard(file.name)
        return source

    def _write_episodes(self, progress: Progress) -> Mapping[str, Any]:
        made = augmentation.augment_episodes(
            self.recorded,
            self.task.graph,
            recipe=self.settings,
            model=self.trained,
            episodes=self.episodes or 1,
            length=self.length,
            resting=self.resting,
            turns=self.turns,
            task=self.labels,
            keep_recorded=self.keep_recorded,
            seed=self.seed,
            progress=progress,
        )
        write(made, self.out)
        return made.source

    def _describe(self, source: Mapping[str, Any]) -> None:
        """Prints what was written, and writes the page about it."""
        if self.rewards == "learned":
            say(f"Rewards are learned from the data's own: {LearnedReward.load(self.folder / REWARD).in_words}")
        total = source["generated_rows"] + (len(self.recorded) if self.keep_recorded else 0)
        new = f"{source['generated_rows']:,} of them new by recipe {self.recipe}"
        new += "" if self.episodes is None else f", in {counted(self.episodes, 'episode')}"
        say(f"{self.out}: {total:,} transitions, {new}")
        opt.say_left_out(self.recorded)
        if self.rewards == "none":
            why = "--reward none" if self.reward == "none" else "neither the data nor the graph file has any"
            say(f"No row has a reward: {why}.")
        if self.trained is not None and self.episodes is None:
            say(f"Next values that are not recorded ones are predicted: {self.trained.next_state}.")
        elif self.model is not None and self.trained is None:
            say("All next values were taken from recorded rows, so that no model was trained.")
        if "filter" in source:
            accepted, drawn = 100 * source["filter"]["accepted_share"], source["filter"]["drawn_rows"]
            say(f"The filters accepted {accepted:.3g}% of {drawn:,} rows drawn.")
        for cut in source["cut"].values() if self.episodes is not None else ():
            if cut["episodes"]:
                say(f"{counted(cut['episodes'], 'new episode')} ended where {cut['why']}.")
        if self.report is not None:
            recorded = None if self.keep_recorded else self.recorded.to("cpu")
            made = read_excerpt(self.out, seed=self.seed)
            write_page(self.report, made, self.out, self.task, recorded=recorded, seed=self.seed)
            say(f"{self.report}: a page about them; open it in a browser")
