"""Does `mocoda.check` notice that a graph lacks an edge? True graphs of known worlds, with and without one edge.

The share of CoDA's rows that the missing edge makes false says how much it matters: CoDA copies recorded next states,
so with a true graph all its rows are true.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mocoda
from experiments.experiment import Cells, Experiment, Run, markdown_table, read_json
from experiments.random_dag import WORLDS, make_world
from mocoda.analysis.row_audit import Limits
from mocoda.data.transitions import Transitions
from mocoda.engine.engines import Processes
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import write_json
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import share_of
from mocoda.graph.local_graph import LocalGraph, probe_rows
from mocoda.parents import Coda, ParentsWithChildren, fit_parents

MATTERS = 0.05  # share of CoDA's rows, above which an edge must be noticed


@dataclass(frozen=True)
class GraphCheck(Experiment):
    """How often `mocoda.check` notices that an edge was left out, and how often it accuses true graphs."""

    name = "check"
    metric = (
        "left out: false, the share of CoDA's rows that the simulator refutes; warned, whether check names missing "
        "edges; named, whether the one left out is among them. true: accused, the edges that check names wrongly"
    )
    outputs = ("check.json",)

    worlds: tuple[str, ...]
    rows: int = 10_000  # recorded
    first_seed: int = 10  # the settings of the check were chosen on the seeds before
    edges: int = 2  # left out per world and seed, in turn
    drawn: int = 2_000  # rows of CoDA
    quick: bool = False  # pass quick=True

    def __post_init__(self) -> None:
        self.check_positive("seeds", "rows", "edges", "drawn")
        for name in self.worlds:
            if name.partition(":")[0] not in WORLDS:
                raise unknown_name("world", name, WORLDS)

    def measure(self, run: Run) -> dict[str, Any]:
        """Checks each world and seed in `workers` processes, with one thread each; finished ones are kept."""
        (run.folder / "cells").mkdir(exist_ok=True)
        jobs = [(world, self.first_seed + number) for number in range(self.seeds) for world in self.worlds]
        files = {job: run.folder / "cells" / f"{job[0].replace(':', '-')}-{job[1]}.json" for job in jobs}
        todo = [job for job in jobs if not files[job].exists()]
        run.progress("check", len(jobs) - len(todo), len(jobs))
        examined = Processes(run.workers).run(Examiner(self), todo)
        for number, (job, cells) in enumerate(examined, 1):
            write_json(files[job], cells)
            run.progress("check", len(jobs) - len(todo) + number, len(jobs))
        return {"checks": [cell for job in jobs for cell in read_json(files[job])["checks"]]}

    def examine(self, world: str, seed: int) -> dict[str, Cells]:
        """The check of a true graph, and of graphs that each lack an edge."""
        task = make_world(world)
        data, graph = task.collect(self.rows, seed=seed), task.graph
        left_out = removable(graph, data.rows)
        order = Stream(0, "left out", world).permutation(len(left_out)).tolist()
        chosen = [left_out[order[(seed * self.edges + i) % len(order)]] for i in range(self.edges)]
        cells: Cells = [self._checked(data, graph, seed)]
        for edge in chosen:
            lacking = without(graph, *edge)
            false = false_rows(task, data, lacking, self.drawn, seed)
            cells.append({"edge": edge, "false": false} | self._checked(data, lacking, seed, edge))
        return {"checks": [{"world": world, "seed": seed} | cell for cell in cells]}

    def _checked(self, data: Transitions, graph: LocalGraph, seed: int, edge: Edge | None = None) -> dict[str, Any]:
        begun = time.process_time()
        advice = mocoda.check(data, graph, seed=seed, quick=self.quick)
        seconds = time.process_time() - begun
        found = [(one.parent, one.child) for one in advice.missing]
        accused = [str(one) for one in advice.missing if (one.parent, one.child) != edge]
        more = {"said": list(advice.recommendation), "false_rows": [one.false_rows for one in advice.missing]}
        return {"warned": bool(found), "named": edge in found, "accused": accused, "seconds": seconds} | more

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        rows = []
        worlds = results["config"]["worlds"]
        for world in (*worlds, None):
            cells = [cell for cell in results["checks"] if world in (cell["world"], None)]
            true, lacking = parted(cells)
            harmful = [cell for cell in lacking if cell["false"] > MATTERS]
            others = [cell for cell in lacking if cell["false"] <= MATTERS]
            seconds = [cell["seconds"] for cell in cells]
            rows.append(
                [
                    "all" if world is None else f"`{world}`",
                    counted(harmful, "warned"),
                    counted(harmful, "named"),
                    counted(others, "warned"),
                    counted([{"silent": not cell["accused"]} for cell in true], "silent"),
                    f"{sum(seconds) / len(seconds):.0f}",
                ]
            )
        heads = ("world", "more than 5% false: warned", "named", "fewer false: warned", "true graph: silent", "CPU s")
        return markdown_table(heads, rows)

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        rows = []
        for cell in cls.results(folder)["checks"]:
            if cell["accused"]:
                edge = " -> ".join(cell["edge"]) if "edge" in cell else "none"
                rows.append([f"`{cell['world']}`", str(cell["seed"]), edge, ", ".join(cell["accused"])])
        others = markdown_table(["world", "seed", "left out", "named besides"], rows) if rows else "None."
        return super().blocks(folder) | {"others": others}

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        true, lacking = parted(results["checks"])
        harmful = [cell for cell in lacking if cell["false"] > MATTERS]
        warned, silent = sum(cell["warned"] for cell in harmful), sum(not cell["accused"] for cell in true)
        return (
            f"It warns of {warned} of {len(harmful)} left-out edges that make more than 5% of CoDA's rows false, and "
            f"is silent about {silent} of {len(true)} true graphs."
        )


@dataclass(frozen=True)
class Examiner:
    """Examines a world and seed in a process."""

    exam: GraphCheck

    def __call__(self, job: tuple[str, int]) -> dict[str, Cells]:
        return self.exam.examine(*job)


Edge = tuple[str, str]  # parent, child


def removable(graph: LocalGraph, rows: Tensor) -> list[Edge]:
    """Edges of recorded or recombined rows without which every child still has a parent in the sparsest graph."""
    there = graph.mask(torch.cat([rows, probe_rows(graph, rows)])).any(0)
    edges = [(graph.parents[p], graph.children[c]) for p, c in there.nonzero().tolist()]
    return [(parent, child) for parent, child in edges if set(graph.edges[child]) != {parent}]


@dataclass(frozen=True)
class Without:
    """A local rule less one edge."""

    graph: LocalGraph
    parent: int
    child: int

    def __call__(self, rows: Tensor) -> Tensor:
        mask = self.graph.mask(rows).clone()
        mask[:, self.parent, self.child] = False
        return mask


def without(graph: LocalGraph, parent: str, child: str) -> LocalGraph:
    """The graph less one edge, wherever it is."""
    edges = {name: [p for p in graph.edges[name] if (p, name) != (parent, child)] for name in graph.children}
    rule = Without(graph, graph.parents.index(parent), graph.children.index(child))
    return replace(graph, edges=edges, local=rule if graph.varies else None)


def false_rows(task: Any, data: Transitions, graph: LocalGraph, drawn: int, seed: int) -> float:
    """The share of CoDA's rows that the simulator refutes; 0 if a graph leaves nothing to exchange."""
    parents = fit_parents(data, graph, Coda(), seed=seed)
    assert isinstance(parents, ParentsWithChildren)
    try:
        rows, after = parents.sample_with_children(drawn, seed=seed)
    except InputError:
        return 0.0
    limits = Limits.of(data, graph, None, None)
    return 1 - float(limits.within(after, task.step(rows)).all(1).double().mean())


def parted(checks: Cells) -> tuple[Cells, Cells]:
    """Checks of true graphs, and of those that lack an edge."""
    return [one for one in checks if "edge" not in one], [one for one in checks if "edge" in one]


def counted(cells: Cells, key: str) -> str:
    """How many of the cells have it, with the 95% interval of the share."""
    if not cells:
        return "–"
    share = share_of(torch.tensor([bool(cell[key]) for cell in cells]))
    low, high = (100 * end for end in share["interval"])
    return f"{sum(bool(cell[key]) for cell in cells)} of {len(cells)} ({low:.0f} to {high:.0f}%)"


EXAM = ("navigation", "objects:2", "objects:4", "dag:5", "traffic", "springs", "resource")
KNOWN = tuple(name for name in EXAM if name.partition(":")[0] in WORLDS)
GraphCheck.presets = {
    "paper": GraphCheck("paper", seeds=10, worlds=KNOWN),
    "quick": GraphCheck("quick", seeds=2, worlds=KNOWN, rows=6_000, quick=True),
}
