"""A second foreign world: OGBench's scene, recorded without ever showing drawer and window open at once.

The recording is OGBench's own scripted oracles', in robomimic's format. One of drawer and window starts closed, and
neither is opened while the other is more than 2 cm open; an episode in which both come to be open is dropped. All else
is handled as the oracles do. What is made of the recording, by a graph of a few lines and by a learned one, is judged
by OGBench's simulator (part "data"), and trains agents (part "agents").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.audit import SMALL
from experiments.cubes import by_way, grown, interval_text, measure_agents
from experiments.experiment import Experiment, Run, check_names, markdown_table, read_json
from experiments.scene.world import OFFICIAL, SLIDES, Scene, both_open
from experiments.stages import audit_part, fit_models, record, share_text
from mocoda import augment, augment_episodes, check_step, fit_parents, learn_graph, load_graph, read, write
from mocoda.agents import Agent
from mocoda.agents.agent import make_agent
from mocoda.agents.policy import agent_settings
from mocoda.data.transitions import Transitions
from mocoda.dynamics import DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph import GateLearner, GraphLearner
from mocoda.graph.local_graph import LocalGraph

GRAPHS = ("written", "learned")
MADE = {
    "coda": "rows of CoDA",
    "default": "rows of the default recipe",
    "exchanges": "episodes of CoDA",
    "turns": "episodes of CoDA, in turns",
}
ARMS = ("recorded", *(f"{made}-{graph}" for made in ("exchanges", "turns") for graph in GRAPHS), "play")
LEFT_OUT = (1, 2)  # the official tasks that end or start with drawer and window open
MOVES = 1e-3
FIRST = 10  # seed of the agents
RESTING = 1e-5  # of a column's largest number: how far what lies may move in a step
PARTS = {"all": "true, %", "left out": "of those with both open, %", "moving": "where one of the two moves, %"}


@dataclass(frozen=True)
class SceneTable(Experiment):
    """How true new rows are in OGBench's scene that combine an open drawer and an open window, and what they teach."""

    name = "scene"
    metric = "share of rows that OGBench's simulator confirms, with its 95% interval; success of agents in percent"
    outputs = ("scene.json",)

    dynamics: DynamicsConfig
    agent: Agent
    rows: int  # recorded
    new: int  # rows to make of each kind; some of them are audited
    audited: int  # rows of each kind, and as many with the left-out combination
    updates: int
    total: int  # rows that agents are trained on
    episodes: int  # of each official task and agent
    parts: tuple[str, ...] = ("data", "agents")
    arms: tuple[str, ...] = ARMS
    learner: GraphLearner = field(default_factory=GateLearner)
    half: bool = False  # train agents with hidden layers in bfloat16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("rows", "new", "audited", "updates", "episodes")
        check_names("part", self.parts, ("data", "agents"))
        check_names("arm", self.arms, ARMS)
        if self.total < self.rows:
            raise InputError(f"total must be at least the number of recorded rows, got {self.total} and {self.rows}.")

    def config(self) -> dict[str, Any]:
        return super().config() | {"agent": agent_settings(self.agent)}

    def measure(self, run: Run) -> dict[str, Any]:
        task = Scene()
        recorded = record(run, task, self.rows, "left-out")
        file = run.folder / "recorded-robomimic.hdf5"
        if not file.exists():
            write(recorded, f"robomimic:{file}")
        data = read(f"robomimic:{file}").to(run.device)
        run.lap("recording")
        graphs: dict[str, LocalGraph] = {"written": task.graph}
        results: dict[str, Any] = {"recording": dict(recorded.source)}
        if "data" in self.parts or any(arm.endswith("learned") for arm in run.chosen(self.arms)):
            graphs["learned"] = self._learned(run, data)
            results["learned"] = str(graphs["learned"])
            run.lap("learned graph")
        if "data" in self.parts:
            results |= self._audits(run, task, data, graphs)
        if "agents" in self.parts:
            seeds = range(FIRST, FIRST + self.seeds)
            options = {"updates": self.updates, "half": self.half}
            dataset = partial(self._dataset, run, task, data, graphs)
            results |= measure_agents(run, task, self.arms, self.agent, seeds, self.episodes, dataset, options)
        return results

    def _learned(self, run: Run, data: Transitions) -> LocalGraph:
        """The graph that is learned from the recording, of the same factors."""
        file = run.folder / "graph" / "learned.graph"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            factors = Scene.graph.state, Scene.graph.action
            learn_graph(data, *factors, learner=self.learner, unseen="apart", progress=run.progress).save(file)
        return load_graph(file)

    def _audits(self, run: Run, task: Scene, data: Transitions, graphs: Mapping[str, LocalGraph]) -> dict[str, Any]:
        limits: dict[str, Any] = {"tolerance": dict(task.tolerance), "columns": task.compared}
        check = check_step(data, task.step, task.graph, rows=self.audited, **limits)
        every = torch.ones(len(data), dtype=torch.bool, device=data.device)
        parts = {"all": every, "moving": _moving(data)}
        found: dict[str, Any] = {"recorded": {}}
        for part, which in parts.items():
            found["recorded"][part] = audit_part(run, task, data, which, self.audited, limits)
        for name, graph in graphs.items():
            for made in MADE:
                try:
                    new = self._new(run, made, name, data, graph)
                except InputError as error:  # by a graph that links too much
                    found[f"{made}-{name}"] = {"none": str(error)}
                    continue
                combined = both_open(new.state)
                parts = {"all": every.new_ones(len(new)), "left out": combined, "moving": combined & _moving(new)}
                audits = {
                    part: audit_part(run, task, new, which, self.audited, limits) for part, which in parts.items()
                }
                found[f"{made}-{name}"] = {"left_out": float(combined.double().mean()), **audits}
                run.lap(f"{made} by the {name} graph")
        return {"check": str(check), "audits": found}

    def _new(self, run: Run, made: str, name: str, data: Transitions, graph: LocalGraph) -> Transitions:
        """At least `new` rows of a kind, without the recorded ones."""
        if made in ("exchanges", "turns"):
            return self._episodes(made, data, graph, max(2, self.new // 20), 0)
        model = fit_models(run, [data], graph, "local", self.dynamics, name=name)[0] if made == "default" else None
        parents = fit_parents(data, graph, "coda" if made == "coda" else "mocoda", seed=0)
        return augment(data, parents, model, rows=self.new, graph=graph, seed=0, keep_recorded=False)

    def _episodes(self, made: str, data: Transitions, graph: LocalGraph, count: int, seed: int | Stream) -> Transitions:
        how: dict[str, Any] = {"turns": made == "turns", "resting": RESTING, "keep_recorded": False, "seed": seed}
        return augment_episodes(data, graph, recipe="coda", episodes=count, task=Scene(), **how)

    def _dataset(
        self, run: Run, task: Scene, data: Transitions, graphs: Mapping[str, LocalGraph], arm: str
    ) -> Transitions:
        """The table of an arm: after the recorded rows, new episodes in which both are open at some time."""
        if arm == "recorded":
            return data
        if arm == "play":
            return record(run, task, self.total, "play", name="recorded-play").to(run.device)
        made, graph = arm.split("-")
        stream = Stream(0, "scene", arm, device=data.device)

        def episodes(number: int, count: int) -> Transitions | None:
            new = self._episodes(made, data, graphs[graph], count, stream.child(number))
            assert new.episode is not None
            kept = torch.isin(new.episode, new.episode[both_open(new.state)])
            return replace(new, provenance={})[kept] if bool(kept.any()) else None

        return grown(episodes, replace(data, provenance={}), self.total)

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        rows = []
        for name, found in results["audits"].items():
            made, _, graph = name.partition("-")
            cells = [share_text(found.get(part)) for part in PARTS]
            share = f"{100 * found['left_out']:.1f}" if "left_out" in found else "–"
            rows.append([MADE.get(made, made), graph, share, *cells])
        return markdown_table(["rows", "graph", "drawer and window open, %", *PARTS.values()], rows)

    @staticmethod
    def agents_table(results: Mapping[str, Any]) -> str:
        """Success by arm, how goals are shown, and official task; the mean of the tasks with its 95% interval."""
        cells, rows = by_way(results), []
        for arm, how in dict.fromkeys((arm, how) for arm, how, _ in cells):
            by_task = [f"{cells[arm, how, str(task)]['mean']:.0f}" for task in OFFICIAL]
            over = interval_text(cells[arm, how, "all"]["values"])
            rows.append([f"`{arm}`", f"{results['data'][arm]['rows']:,}", how, *by_task, over])
        titles = [f"task {task}" + (" (left out)" if task in LEFT_OUT else "") for task in OFFICIAL]
        return markdown_table(["data", "rows", "goals shown", *titles, "all (95% interval)"], rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        audits = results["audits"]
        shares = {name: 100 * audits[f"turns-{name}"]["left out"]["confirmed"] for name in GRAPHS}
        return (
            f"Rows can be made: of CoDA's turns with drawer and window open, which no recorded row shows, "
            f"{shares['written']:.1f}% are true with a written graph and {shares['learned']:.1f}% with a learned one; "
            f"of recorded rows {100 * audits['recorded']['all']['confirmed']:.1f}%. Whether agents profit has not been "
            "measured."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        results, agents = cls.results(folder), folder / "agents.json"
        return super().blocks(folder) | {
            "agents": cls.agents_table(read_json(agents)) if agents.exists() else "Agents have not been measured.",
            "check": results["check"],
            "graph": f"```text\n{results['learned']}\n```",
        }


def _moving(data: Transitions) -> Tensor:
    """The rows in which drawer or window moves, bool (N,)."""
    return (data.next_state - data.state)[:, SLIDES].abs().amax(1) > MOVES


# A small model, with next states as they are by default.
SHIPPED = replace(SMALL, next_state="auto")
SceneTable.presets = {
    "paper": SceneTable(
        "paper",
        seeds=5,
        dynamics=SHIPPED,
        agent=make_agent("gciql", decay=True),
        rows=300_000,
        new=100_000,
        audited=2_000,
        updates=150_000,
        total=3_000_000,
        episodes=20,
        parts=("agents",),
        arms=("recorded", "turns-written", "turns-learned"),
        half=True,
    ),
    "data": SceneTable(
        "data",
        seeds=1,
        dynamics=SHIPPED,
        agent=make_agent("gciql"),
        rows=30_000,
        new=30_000,
        audited=1_000,
        updates=1,
        total=30_000,
        episodes=1,
        parts=("data",),
    ),
    "quick": SceneTable(
        "quick",
        seeds=1,
        dynamics=SHIPPED,
        agent=make_agent("gciql", hidden=(128, 128), batch=256),
        rows=6_000,
        new=6_000,
        audited=200,
        updates=800,
        total=8_000,
        episodes=1,
        learner=GateLearner.quick(),
    ),
}
