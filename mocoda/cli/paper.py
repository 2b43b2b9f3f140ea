"""The commands that reproduce the paper: experiments, the demo and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mocoda.cli.agents import draw_without_screen
from mocoda.cli.engines import LOCAL, EngineOptions
from mocoda.cli.options import Device, Folder, Overwrite, check_device, console, say
from mocoda.cli.parser import Command, Flat, value_of
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_target, write_json

if TYPE_CHECKING:
    from experiments import Experiment

RECORDED, ROWS, SHOWN = 40_000, 160_000, 600  # of the demo: rows recorded, generated, and drawn in its first figure


@dataclass(frozen=True)
class Paper(Command):
    """Measure a table of the paper, or something else it says, and draw the figures.

    The settings of the experiment are options, with the defaults of its preset. After a kill, the same command goes on
    where it was.
    """

    kind = "experiment"

    name: Annotated[Positional[str], arg(metavar="EXPERIMENT")]
    """{experiments}."""
    settings: Flat[Any]
    device: Device = "cpu"
    workers: int | None = None
    """Processes that simulate, for experiments on HookSweep2, or that train, for masks; or CPUs of a Ray that is
    started. Without it one per core."""
    engines: Flat[EngineOptions] = LOCAL
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Folder to write; without it runs/EXPERIMENT-PRESET."""
    overwrite: Overwrite = False

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        from experiments import EXPERIMENTS, find_experiment

        name = next((word for word in words if word in EXPERIMENTS), None)
        if name is None:
            given = next((word for word in words if not word.startswith("-")), None)
            if given is None:
                raise InputError(f"which experiment? There are:\n{EXPERIMENTS.summary}")
            name = given  # refused with the names that there are
        return {"settings": find_experiment(name, value_of("--preset", words, "quick"))}

    @property
    def choice(self) -> str:
        return str(self.settings.name)

    def run(self) -> None:
        check_device(self.device)
        self.engines.check(self.device)
        folder = self.out or Path(f"runs/{self.name}-{self.settings.preset}")
        _run(self.settings, folder, self.device, self.overwrite, workers=self.workers)


@dataclass(frozen=True)
class Demo(Command):
    """Show the whole method in minutes: data, MoCoDA, small Tables 1 and 2, agents that cut the corner, and a robot."""

    out: Folder = Path("runs/demo")
    """Folder for the augmented data, the tables and the figures."""
    device: Device = "cpu"
    overwrite: Overwrite = False

    def run(self) -> None:
        draw_without_screen()
        check_device(self.device)
        from experiments.table1 import Table1
        from experiments.table2 import Table2, draw_walks, walk
        from mocoda.augmentation import Augmentation
        from mocoda.data import save_stream
        from mocoda.engine.runs import RunFolder

        outputs = ("graph.png", "parents.png", "navigation-mocoda.hdf5", "walks.png", "robot.gif")
        settings = {"rows": ROWS, "seed": 0, "device": self.device}
        with RunFolder(self.out, "demo", settings, outputs, self.overwrite):
            self._draw_first()
        first = _run(Table1.presets["quick"], self.out / "table1", self.device, self.overwrite)
        data, parents, model = first.datasets[0], first.parents["mocoda"][0], first.models["local"][0]
        file = self.out / "navigation-mocoda.hdf5"
        with RunFolder(self.out, "demo", settings, outputs) as run:
            plan = Augmentation(data, parents, model, rows=ROWS, task=first.task, seed=0)
            save_stream(file, plan.chunks(run.progress))
        say(f"{len(data):,} recorded transitions and {ROWS:,} counterfactual ones after them: {file}")
        models = first.models["local"]
        second = _run(Table2.presets["quick"], self.out / "table2", self.device, self.overwrite, models=models)
        walks = walk(second, ("emp", "mocoda"))["td3-bc"]
        titles = {"emp": "trained on the recorded data", "mocoda": "trained on MoCoDA's data"}
        with RunFolder(self.out, "demo", settings, outputs):
            draw_walks({titles[name]: path for name, path in walks.items()}, self.out / "walks.png", data.state)
            say(f"What all this is for: {self.out / 'walks.png'}")
            self._film()

    def _film(self) -> None:
        """Films a robot that was trained on MoCoDA's data, where the machine can."""
        from mocoda.agents.film import film
        from mocoda.agents.policy import shipped_policy
        from mocoda.tasks import make_task

        file = self.out / "robot.gif"
        try:
            successes = film(file, make_task("hooksweep2"), shipped_policy("hooksweep2"), episodes=2)
        except Exception as error:  # MuJoCo or a way to draw may be missing, and that is no reason to fail
            say(f"There is no film of a robot, for this machine cannot draw it ({error}).")
            return
        say(f"A robot that was trained with MoCoDA to sweep two boxes, having seen one: {file} ({successes} of 2 done)")

    def _draw_first(self) -> None:
        """Draws what can be seen before anything is trained."""
        from experiments.table1 import draw_transitions
        from mocoda.graph.figure import draw_graph
        from mocoda.parents import fit_parents
        from mocoda.tasks import make_task

        task = make_task("navigation")
        data = task.collect(RECORDED, seed=0).to(self.device)
        draw_graph(task.graph, self.out / "graph.png", data.rows)
        say(f"What depends on what, and where: {self.out / 'graph.png'}")
        drawn = fit_parents(data, task.graph).sample(SHOWN, seed=0)
        shown = {"recorded": data.rows[:: len(data) // SHOWN], "drawn by MoCoDA": drawn}
        panels = {title: (rows[:, :2], rows[:, :2] + 0.05 * rows[:, 2:]) for title, rows in shown.items()}
        draw_transitions(panels, self.out / "parents.png")
        say(f"Recorded states and actions, and new ones: {self.out / 'parents.png'}")
        say("Now dynamics models and agents are trained: about 5 minutes on 2 cores.")


@dataclass(frozen=True)
class Bench(Command):
    """Time the parts against scikit-learn and against their targets, in one run."""

    device: Device = "cpu"
    out: Annotated[Path, arg(metavar="FILE")] = Path("runs/bench.json")
    """JSON file to write, such as experiments/speed/cpu.json."""
    overwrite: Overwrite = False

    def run(self) -> None:
        check_device(self.device)
        check_target(self.out, overwrite=self.overwrite)
        from experiments.speed import as_table, measure

        results = measure(self.device, lambda name: say(f"timing {name} …"))
        console.print(as_table(results))
        write_json(self.out, results)
        say(f"Written to {self.out}")


def _run(experiment: Experiment[Any], folder: Path, device: str, overwrite: bool, **given: Any) -> Any:
    """Runs an experiment, prints its table and says where the rest is."""
    from experiments import run_experiment

    measured, table = run_experiment(experiment, folder, device=device, overwrite=overwrite, **given)
    console.print(table)
    results, outputs = measured.results, experiment.outputs
    resumed = " after resuming" if results.get("resumed") else ""
    say(f"Measured in {results['seconds']} s{resumed} on {results['device']}; cells in {folder / outputs[0]}")
    say(f"Figures: {', '.join(str(folder / name) for name in outputs if name.endswith('.png'))}")
    return measured
