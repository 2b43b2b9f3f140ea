"""The command that replays generated rows in a simulator."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from tyro.conf import Fixed, arg

from mocoda.analysis import audit, check_step
from mocoda.analysis.replay import EnvironmentStep
from mocoda.cli import options as opt
from mocoda.cli.options import say
from mocoda.data import read, write
from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.runs import RunFolder
from mocoda.graph.columns import ColumnNames
from mocoda.graph.graph_file import FileTask, load_task
from mocoda.tasks import Task, make_task

CHECKPOINT = "replayed.safetensors"


@dataclass(frozen=True, kw_only=True)
class Audit(opt.OnData):
    """Replay generated rows in a simulator, and report which share of them is true.

    The simulator is that of a built-in task, the function step(rows) of a graph file, or a Gymnasium environment. After
    a kill, the same command continues.
    """

    environment: Annotated[opt.Maybe[str], arg(metavar="ID")] = None
    """Gymnasium environment that replays the rows; the graph file defines put(env, state), which puts it in a state."""
    tolerance: Annotated[tuple[str, ...], arg(metavar="NUMBER|FACTOR=NUMBER [...]", help_behavior_hint="")] = ()
    """Largest error of a factor's next value that counts as true, in the units of the data: one number for all factors,
    or one for each of the factors to compare. Without it, the task's, or a tenth of the standard deviation of a
    recorded step."""
    columns: opt.Words = ()
    """Columns of the state to compare; without it the task's, or all."""
    rows: opt.Maybe[int] = None
    """Audit this many rows, drawn at random, instead of all."""
    episodes: opt.Maybe[int] = None
    """Audit the rows of this many generated episodes, and of as many recorded ones, drawn at random."""
    target: opt.MaybeData = None
    """Data of the task that an agent is to learn: report which share of its states has a true row near it."""
    reading: Fixed[opt.ReadOptions] = opt.AS_IT_SAYS  # --columns means something else here
    workers: opt.Maybe[int] = None
    """Number of processes that simulate; without it one per free core for robots and environments, and none but this
    one for others. The result does not depend on it."""
    keep: Annotated[opt.Maybe[str], arg(metavar="FILE")] = None
    """Write the data to this file with the verdicts as provenance `confirmed`: 1 true, 0 false, -1 not audited."""
    out: opt.Folder = Path("runs/audit")
    """Folder for audit.json."""

    def run(self) -> None:
        single = len(self.tolerance) == 1 and "=" not in self.tolerance[0]
        words = (f"all={self.tolerance[0]}",) if single else self.tolerance
        tolerances = opt.assigned("tolerance", words, float, "0.01, or x=0.01 y=0.02")
        tolerance: Any = tolerances["all"] if single else tolerances
        kept = None if self.keep is None else opt.check_out(self.keep, [self.data, self.world.graph]).path
        data, world = self.read()
        truth = self._truth(data, world)
        workers = self.workers
        if workers is None and self.environment is None and not world.name.startswith(("hooksweep2", "cube-")):
            workers = 0
        settings = self.identity(data, world, "workers", "keep")
        settings["provenance"] = fingerprint(*data.provenance.values()) if data.provenance else None
        result = self.out / "audit.json"
        options: dict[str, Any] = {
            "tolerance": tolerance if self.tolerance else getattr(world, "tolerance", None),
            "columns": self.columns or getattr(world, "compared", None),
        }
        with RunFolder(self.out, "audit", settings, (result.name, CHECKPOINT), self.overwrite, kept) as run:
            with suppress(InputError):  # data without recorded rows
                checked = check_step(data, replace(truth), world.graph, **options, seed=self.seed)
                if checked.causes:
                    say(str(checked))
            found = audit(
                data,
                truth,
                world.graph,
                **options,
                rows=self.rows,
                episodes=self.episodes,
                target=None if self.target is None else read(self.target),
                seed=self.seed,
                workers=workers,
                checkpoint=run.path / CHECKPOINT,
                progress=run.progress,
            )
            write_json(result, found.to_json())
            if self.keep is not None:
                write(found.keep(data), self.keep)
            run.discard(CHECKPOINT)
        opt.show(found)
        say(f"Written to {result}")
        if self.keep is not None:
            say(f"{self.keep}: the data with the verdicts; `mocoda export --where confirmed=1` keeps only true rows")

    def _truth(self, data: Transitions, world: Task | FileTask) -> Truth:
        """What replays rows; raises if nothing can."""
        graph, needed = self.world.graph, "step" if self.environment is None else "put"
        if getattr(world, needed, None) is None:
            what = {"step": "step(rows), the true next states", "put": "put(env, state), which --environment needs"}
            raise InputError(f"{str(graph or world.name)!r} does not define {what[needed]}. Write it in Python (.py).")
        return Truth(graph or str(self.world.task or opt.task_of(data)), ColumnNames.of(data), self.environment)


@dataclass(frozen=True)
class Truth:
    """The step of a task, a graph file or an environment, which every process makes for itself."""

    world: Path | str
    names: ColumnNames
    environment: str | None

    def __call__(self, rows: Tensor) -> Any:
        return self._step(rows)

    @cached_property
    def _step(self) -> Any:
        world = self.world
        task: Any = load_task(world, self.names) if isinstance(world, Path) else make_task(world)
        if self.environment is None:
            return task.step
        return EnvironmentStep(self.environment, task.put, len(self.names.state))
