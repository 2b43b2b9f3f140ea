"""The demo: every stage of the method as the command that a user would type, on data of a small world."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from mocoda.agents import Policies, Policy
from mocoda.cli import options as opt
from mocoda.cli import read_command
from mocoda.cli.options import say
from mocoda.data import read, write
from mocoda.data.transitions import Transitions
from mocoda.engine.figure_style import save
from mocoda.engine.files import whole_file
from mocoda.tasks.navigation import Navigation

RECORDED, NEW, UPDATES = 20_000, 80_000, 6_000  # rows recorded and generated, and gradient steps of each agent
DRAWN = 500  # rows in a picture
SMALL = "--seeds 2 --hidden 128 128 --batch 256 --polyak 0.01 --evaluate-every 500"  # agents that train in a minute
PLAIN = ("state", "action", "next_state", "reward", "terminal", "episode")  # what other people's data has
# The graph file of the demo, as a user would write it.
GRAPH = '''"""A point walks in a square: x and y move apart from each other, but not in the upper right quarter."""

state = {"x": 0, "y": 1}  # factors and their columns
action = {"dx": 0, "dy": 1}
edges = {"x": ["x", "dx"], "y": ["y", "dy"]}  # what the next x and the next y depend on, everywhere


def local(factors):
    """In the upper right quarter, everything depends on everything."""
    both = (factors["x"][:, 0] > 0.5) & (factors["y"][:, 0] > 0.5)
    return {("y", "x"): both, ("dy", "x"): both, ("x", "y"): both, ("dx", "y"): both}


def terminal(state, action, next_state):
    """The task: reach the goal, which ends the episode ..."""
    return ((next_state > 0.8) & (next_state < 0.9)).all(1)


def reward(state, action, next_state):
    """... in as few steps as possible: every other step costs 1."""
    return terminal(state, action, next_state).float() - 1
'''


@dataclass(frozen=True)
class Demo(opt.Command):
    """Show the whole method in minutes: data, graph, new rows, agents before and after, a page.

    Every step prints the command that a user would type for it. After a kill, the same command continues.
    """

    out: opt.Folder = Path("runs/demo")
    """Folder for everything that the demo makes."""

    def run(self) -> None:
        task = Navigation()
        walks, graph, made, agents, page = (
            self.out / name for name in ("walks.npz", "walks.py", "augmented.hdf5", "agents", "page.html")
        )
        if not walks.exists():
            data = task.collect(RECORDED, seed=0)
            write(Transitions(**{name: getattr(data, name) for name in PLAIN}), walks)
        if not graph.exists():
            with whole_file(graph) as part:
                part.write_text(GRAPH, encoding="utf-8")
        say(f"1. Recorded walks in a square, {walks}. They go up the right side, or right along the bottom.")
        self._do("inspect", walks)
        say(f"\n2. A graph says what depends on what, and where. This is {graph}:\n\n{GRAPH}")
        self._do("graph", graph, "--data", walks, "--out", self.out / "graph.png")
        say("\n3. Does the data support this graph?")
        self._do("check", walks, "--graph", graph, "--quick", "--out", self.out / "check", makes="check/advice.json")
        say("\n4. New rows: recorded x and y in new combinations, and what happens next by a learned model.")
        self._do("augment", walks, "--graph", graph, "--rows", NEW, "--quick", "--out", made)
        rows = {"recorded": read(walks), "new": Transitions.load(made)[RECORDED:]}
        drawn = {title: table[:: len(table) // DRAWN] for title, table in rows.items()}
        _draw({title: (some.state, some.next_state) for title, some in drawn.items()}, self.out / "rows.png")
        say(f"Recorded rows and new ones: {self.out / 'rows.png'}")
        say("\n5. Agents before and after: trained on the recorded walks, and on all rows, to cross the square.")
        training = ["--task", task.name, "--updates", UPDATES, *SMALL.split(), "--out", agents]
        self._do("train", walks, made, *training, makes="agents/agents.json")
        self._do("evaluate", agents)
        trained = Policies.load(agents)
        titles = {"walks": "trained on the recorded walks", "augmented": "trained with mocoda"}
        _draw({title: _paths(task, trained[name, 0]) for name, title in titles.items()}, self.out / "paths.png")
        say(f"Where the agents go from the lower left corner: {self.out / 'paths.png'}")
        say("\n6. On one page: the graph, the check, the learning curves, and every new row with its donors.")
        options = ["--graph", graph, "--recorded", walks, "--check", self.out / "check", "--training", agents]
        self._do("report", made, *options, "--out", page)
        say("\n7. A robot that was trained with mocoda to sweep two boxes, after data that shows one at a time.")
        try:
            self._do("watch", "--episodes", "2", "--out", self.out / "robot.gif")
        except Exception as error:  # MuJoCo or a way to draw may be missing, which is no reason to fail
            say(f"This machine cannot draw the robot ({error}).")
        say(f"\nOpen {page} in a browser; everything else is in {self.out}.")

    def _do(self, *words: object, makes: str = "") -> None:
        """Prints a command and runs it, unless an earlier demo has made its output."""
        line = [*map(str, words)]
        say(f"$ mocoda {shlex.join(line)}")
        output = self.out / makes if makes else Path(line[-1])
        if "--out" in line and output.exists():
            say(f"{output} is there already.")
        else:
            read_command(line).run()


def _paths(task: Navigation, policy: Policy) -> tuple[Tensor, Tensor]:
    """States and next states, (N, 2) each, of an agent on its way to the goal from 20 starts."""
    state, steps = task.start(20, seed=0), []
    for _ in range(task.horizon):
        action = torch.as_tensor(policy.act(state))
        next_state = task.step(torch.cat([state, action], 1))
        steps.append(torch.stack([state, next_state]))
        state = next_state[~task.label(state, action, next_state)[1]]
    before, after = torch.cat(steps, 1)
    return before, after


def _draw(panels: Mapping[str, tuple[Tensor, Tensor]], path: Path) -> None:
    """Draws arrows from states to next states, (N, 2) each, in one panel for each title."""
    figure = Figure(figsize=(5 * len(panels), 5.2), layout="constrained")
    for axes, (title, (state, next_state)) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for corner, size, color, name in ((0.0, 0.15, "tab:blue", "start"), (0.8, 0.1, "tab:green", "goal")):
            axes.add_patch(Rectangle((corner, corner), size, size, color=color, alpha=0.25, linewidth=0))
            axes.text(corner, corner + size + 0.02, name)
        start, move = state.numpy(), (next_state - state).numpy()
        axes.quiver(*start.T, *move.T, angles="xy", scale_units="xy", scale=1, width=0.003, color="tab:blue", alpha=0.6)
        axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), xticks=[0, 1], yticks=[0, 1], aspect="equal", title=title)
    save(figure, path)
