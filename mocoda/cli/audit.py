"""The command that replays generated rows in a simulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Fixed, arg

from mocoda.cli.options import AS_IT_SAYS, Folder, Maybe, OnData, ReadOptions, check_out, say, show, task_of
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json

if TYPE_CHECKING:
    from torch import Tensor

    from mocoda.data.transitions import Transitions
    from mocoda.graph.columns import ColumnNames
    from mocoda.graph.graph_file import FileTask
    from mocoda.tasks import Task

CHECKPOINT = "replayed.safetensors"


@dataclass(frozen=True, kw_only=True)
class Audit(OnData):
    """Replay generated rows in a simulator, and report which share of them is true.

    The simulator is that of a built-in task, the function step(rows) of a graph file, or a Gymnasium environment. After
    a kill, the same command continues.
    """

    environment: Annotated[Maybe[str], arg(metavar="ID")] = None
    """Gymnasium environment that replays the rows; the graph file defines put(env, state), which puts it in a state."""
    tolerance: Annotated[tuple[str, ...], arg(metavar="NUMBER|FACTOR=NUMBER [...]", help_behavior_hint="")] = ()
    """Largest error of a factor's next value that counts as true, in the units of the data: one number for all factors,
    or one for each of the factors to compare. Without it, the task's, or a tenth of the standard deviation of a
    recorded step."""
    columns: Annotated[tuple[str, ...], arg(metavar="NAME [NAME ...]", help_behavior_hint="")] = ()
    """Columns of the state to compare; without it the task's, or all."""
    rows: Maybe[int] = None
    """Audit this many rows, drawn at random, instead of all."""
    episodes: Maybe[int] = None
    """Audit the rows of this many generated episodes, and of as many recorded ones, drawn at random."""
    reading: Fixed[ReadOptions] = AS_IT_SAYS  # --columns means something else here
    workers: Maybe[int] = None
    """Number of processes that simulate; without it one per core for robots and environments, and none but this one
    for others. The result does not depend on it."""
    keep: Annotated[Maybe[str], arg(metavar="FILE")] = None
    """Write the data to this file with the verdicts as provenance `confirmed`: 1 true, 0 false, -1 not audited."""
    out: Folder = Path("runs/audit")
    """Folder for audit.json and audit.png."""

    def run(self) -> None:
        from mocoda.analysis import audit
        from mocoda.analysis.audit_figure import draw_audit
        from mocoda.data import write
        from mocoda.engine.checkpoint import fingerprint
        from mocoda.engine.runs import RunFolder

        self.world.check()
        tolerance = _tolerance(self.tolerance)
        kept = None if self.keep is None else check_out(self.keep, [self.data, self.world.graph])
        data, world = self.read()
        truth = self._truth(data, world)
        workers = self.workers
        if workers is None and self.environment is None and not world.name.startswith(("hooksweep2", "cube-")):
            workers = 0
        settings = self.identity(data, world, "workers", "keep")
        settings["provenance"] = fingerprint(*data.provenance.values()) if data.provenance else None
        outputs, target = ("audit.json", "audit.png", CHECKPOINT), None if kept is None else kept.path
        with RunFolder(self.out, "audit", settings, outputs, self.overwrite, target) as run:
            found = audit(
                data,
                truth,
                world.graph,
                tolerance=getattr(world, "tolerance", None) if tolerance is None else tolerance,
                columns=self.columns or getattr(world, "compared", None),
                rows=self.rows,
                episodes=self.episodes,
                seed=self.seed,
                workers=workers,
                checkpoint=run.path / CHECKPOINT,
                progress=run.progress,
            )
            write_json(self.out / "audit.json", found.to_json())
            draw_audit(found.to_json(), self.out / "audit.png")
            if self.keep is not None:
                write(found.keep(data), self.keep)
            run.discard(CHECKPOINT)
        show(found)
        say(f"Written to {self.out / 'audit.json'}; drawn: {self.out / 'audit.png'}")
        if self.keep is not None:
            say(f"{self.keep}: the data with the verdicts; `mocoda export --where confirmed=1` keeps only true rows")

    def _truth(self, data: Transitions, world: Task | FileTask) -> Truth:
        """What replays rows; raises if nothing can."""
        from mocoda.graph.columns import ColumnNames

        needed = "step" if self.environment is None else "put"
        if self.environment is not None and self.world.graph is None:
            raise InputError(
                "--environment needs --graph with a Python file that defines put(env, state): it puts the environment "
                "in a state."
            )
        if getattr(world, needed, None) is None:
            if self.world.graph is None:
                raise InputError(f"the task {world.name!r} has no step(rows), and so nothing that knows the truth.")
            both = "step(rows), the true next states, or put(env, state) for --environment"
            wanted = both if self.environment is None else "put(env, state), which puts the environment in a state"
            raise InputError(f"{str(self.world.graph)!r} does not define {wanted}. Write it in Python (.py).")
        task = None if self.world.graph is not None else self.world.task or task_of(data)
        return Truth(task, self.world.graph, ColumnNames.of(data), self.environment)


@dataclass(frozen=True)
class Truth:
    """The step of a task, a graph file or an environment, which every process makes for itself."""

    task: str | None
    graph: Path | None
    names: ColumnNames
    environment: str | None

    def __call__(self, rows: Tensor) -> Any:
        return self._step(rows)

    @cached_property
    def _step(self) -> Any:
        from mocoda.analysis.replay import EnvironmentStep
        from mocoda.graph.graph_file import load_task
        from mocoda.tasks import make_task

        if self.task is not None:
            return getattr(make_task(self.task), "step")  # noqa: B009  (not every task has one)
        assert self.graph is not None
        world = load_task(self.graph, self.names)
        if self.environment is None:
            return world.step
        assert world.put is not None
        return EnvironmentStep(self.environment, world.put)


def _tolerance(words: tuple[str, ...]) -> float | dict[str, float] | None:
    """One number, or numbers by factor; None where nothing is given."""
    try:
        if len(words) == 1 and "=" not in words[0]:
            return float(words[0])
        pairs = [word.partition("=") for word in words]
        return {factor: float(number) for factor, _, number in pairs} or None
    except ValueError:
        raise InputError(
            f"a tolerance is a number, or FACTOR=NUMBER for each of some factors, got {' '.join(words)!r}."
        ) from None
