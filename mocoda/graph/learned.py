"""Graphs that are learned from data: the contract of a learner, and the graph that it gives, saved without code.

A learner is a frozen dataclass of settings that derives from `GraphLearner`. It learns tensors from recorded rows, and
computes the probability of every edge from them. Check your own with `mocoda.check_learner`, and add it with
`LEARNERS.add` to choose it by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from mocoda.data.transitions import Array, Transitions, as_tensor
from mocoda.engine.checkpoint import check_tensors, from_settings, load_trained, reading, save_trained
from mocoda.engine.errors import InputError
from mocoda.engine.networks import Weights
from mocoda.engine.progress import Progress
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import Registry
from mocoda.graph.columns import ColumnNames
from mocoda.graph.local_graph import LocalGraph

KINDS = ("state", "action")
SPARSEST_SHARE = 0.99  # of the rows: an edge that is present in this share of them belongs to the sparsest graph
BLOCK_ROWS = 256  # evaluated at a time on a CPU, always this many: a row's probabilities do not depend on other rows
MAX_EDGES = 2**19  # rows times edges evaluated at a time on a GPU


@dataclass(frozen=True)
class GraphLearner:
    """A way to learn a local graph from data: settings, and how edges are learned and predicted."""

    name: ClassVar[str]  # what `learn_graph` calls it
    caution: ClassVar[float]  # the probability above which an edge counts as present, unless the user gives another

    def learn(
        self, data: Transitions, graph: LocalGraph, always: Tensor, never: Tensor, stream: Stream, progress: Progress
    ) -> dict[str, Tensor]:
        """Tensors that `probability` needs, on the device of the data. Two of them are `always` and `never`.

        graph   the factors; every edge is in it
        always  edges that are present in all rows, bool (P, C); the learner may add some
        never   edges that are absent in all rows, bool (P, C)
        stream  the only source of random numbers
        """
        raise NotImplementedError

    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        """How likely each edge is at rows (N, S + A), float (N, P, C); those of fixed edges do not matter."""
        raise NotImplementedError

    def expected(self, graph: LocalGraph) -> dict[str, Tensor]:
        """Tensors with the names, shapes and types of those that `learn` returns, to check files."""
        fixed = torch.empty(len(graph.parents), len(graph.children), dtype=torch.bool)
        return {"always": fixed, "never": fixed}

    @staticmethod
    def quick() -> GraphLearner:
        """The learner with settings that take less time and give a less accurate graph."""
        raise NotImplementedError


LEARNERS: Registry[type[GraphLearner]] = Registry("graph learner")


def make_learner(name: str, **settings: Any) -> GraphLearner:
    """The graph learner called `name`, with its default settings except for those given."""
    learner: GraphLearner = LEARNERS.make(name, **settings)
    return learner


@dataclass(frozen=True, eq=False, repr=False)
class LearnedGraph(LocalGraph):
    """A graph that `learn_graph` made: a LocalGraph that also gives the probability of every edge in every row.

    learner       computes the probabilities
    tensors       what it learned
    caution       an edge is present where its probability is above this number
    names         the names of the data's columns
    row_shares    the share of the data's rows that have each edge, float (parents, children)
    settings      other settings of the learning, as JSON values
    fingerprints  of the data
    """

    learner: GraphLearner = field(kw_only=True)
    tensors: Weights = field(kw_only=True)
    caution: float = field(kw_only=True)
    names: ColumnNames = field(kw_only=True)
    row_shares: Tensor = field(kw_only=True)
    settings: Mapping[str, Any] = field(kw_only=True, default_factory=dict)
    fingerprints: Mapping[str, str] = field(kw_only=True, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "local", self._local)

    def __str__(self) -> str:
        lines = [repr(self)]
        for child, column in zip(self.children, self.row_shares.T.tolist(), strict=True):
            some = [
                f"{parent} ({100 * share:.2g}% of the rows)"
                for parent, share in zip(self.parents, column, strict=True)
                if share > 0 and parent not in self.edges[child]
            ]
            also = f", and in some rows on {', '.join(some)}" if some else ""
            lines.append(f"  {child} depends on {', '.join(self.edges[child])}{also}")
        return "\n".join(lines)

    @torch.no_grad()
    def edge_probability(self, rows: Array) -> Tensor:
        """How likely each edge is at rows (N, S + A): float (N, parents, children)."""
        rows = as_tensor(rows).float()
        self.check_rows(rows)
        tensors = {name: tensor.to(rows.device) for name, tensor in self.tensors.items()}
        edges = len(self.parents) * len(self.children)
        size = BLOCK_ROWS if rows.device.type == "cpu" else max(BLOCK_ROWS, min(16_384, MAX_EDGES // edges))
        blocks = []
        for part in rows.split(size):
            found = self.learner.probability(tensors, self, pad(part, (0, 0, 0, size - len(part))))[: len(part)]
            if found.shape[1:] != tensors["always"].shape:
                raise InputError(
                    f"graph learner {self.learner.name!r} must return probabilities (N, parents, children), here "
                    f"{(len(part), *tensors['always'].shape)}, got {tuple(found.shape)}."
                )
            blocks.append(torch.where(tensors["always"], 1.0, torch.where(tensors["never"], 0.0, found)))
        return torch.cat(blocks) if blocks else rows.new_zeros(0, len(self.parents), len(self.children))

    def doubts(self, rows: Array) -> dict[str, float]:
        """The share of the rows (N, S + A) in which an edge has a probability between 10 and 90%, largest first."""
        rows = as_tensor(rows).float()
        unsure = [((found > 0.1) & (found < 0.9)).sum(0) for found in map(self.edge_probability, rows.split(65_536))]
        shares = torch.stack(unsure).sum(0).double() / max(1, len(rows))
        named = {
            f"{parent} -> {child}": float(shares[p, c])
            for p, parent in enumerate(self.parents)
            for c, child in enumerate(self.children)
            if shares[p, c] > 0
        }
        return dict(sorted(named.items(), key=lambda item: -item[1]))

    def save(self, path: str | Path) -> None:
        """Writes the graph to a safetensors file, which is called *.graph by convention, which `load_graph` reads."""
        # Lists, as a file's mappings are sorted by name and the tensors are in the order of the factors.
        factors = {kind: [[name, list(self.own_columns(name))] for name in getattr(self, kind)] for kind in KINDS}
        settings = {
            **factors,
            "edges": [[child, list(parents)] for child, parents in self.edges.items()],
            "columns": {kind: list(getattr(self.names, kind)) for kind in KINDS},
            "caution": self.caution,
            "learner": {"name": self.learner.name, "settings": json.loads(json.dumps(asdict(self.learner)))},
            "learning": dict(self.settings),
            "absent": dict(self.absent),
        }
        tensors = {"row_shares": self.row_shares, **self.tensors}
        save_trained(path, "graph", tensors, {"settings": settings, "fingerprints": dict(self.fingerprints)})

    def with_caution(self, caution: float, rows: Array) -> LearnedGraph:
        """The same graph with edges where they are likelier than `caution`; its sparsest graph has
        those of nearly all of the rows (N, S + A)."""
        check_caution(caution)
        rows = as_tensor(rows).float()
        counts = [(self.edge_probability(block) > caution).sum(0) for block in rows.split(65_536)]
        shares = torch.stack(counts).sum(0).double().cpu() / max(1, len(rows))
        always = (shares >= SPARSEST_SHARE) | self.tensors["always"].cpu()
        edges = {
            child: tuple(parent for parent, there in zip(self.parents, column, strict=True) if there)
            for child, column in zip(self.children, always.T.tolist(), strict=True)
        }
        return replace(self, edges=edges, caution=caution, row_shares=torch.where(always, 1.0, shares))

    def own_columns(self, name: str) -> tuple[int, ...]:
        """The columns of a factor, counted within the state or the action."""
        offset = 0 if name in self.state else self.state_width
        return tuple(column - offset for column in self.factors[name])

    def _local(self, rows: Tensor) -> Tensor:
        return self.sparsest.to(rows.device) | (self.edge_probability(rows) > self.caution)


def check_caution(caution: float) -> None:
    if not 0 < caution < 1:
        raise InputError(f"caution must be a probability between 0 and 1, got {caution}.")


def load_learned(path: str | Path, names: ColumnNames | None = None) -> LearnedGraph:
    """Reads what `LearnedGraph.save` wrote, for data whose columns have these names."""
    tensors, header = load_trained(path, "graph")
    with reading(path, "graph"):
        settings = header["settings"]
        columns = ColumnNames(*(tuple(map(str, settings["columns"][kind])) for kind in KINDS))
        factors = [{str(name): [int(i) for i in own] for name, own in settings[kind]} for kind in KINDS]
        edges = {str(child): tuple(parents) for child, parents in settings["edges"]}
        shape = LocalGraph(state=factors[0], action=factors[1], edges=edges)
        if (shape.state_width, shape.width) != (len(columns.state), len(columns.state) + len(columns.action)):
            raise InputError("its factors and its column names disagree")
        chosen = settings["learner"]
        learner = from_settings(LEARNERS[chosen["name"]], chosen["settings"])
        check_tensors(tensors, {"row_shares": torch.empty(shape.sparsest.shape).double(), **learner.expected(shape)})
        shares = tensors.pop("row_shares")
        graph = LearnedGraph(
            shape.state,
            shape.action,
            shape.edges,
            absent=dict(settings.get("absent", {})),
            learner=learner,
            tensors=tensors,
            caution=float(settings["caution"]),
            names=columns,
            row_shares=shares,
            settings=settings["learning"],
            fingerprints=header["fingerprints"],
        )
    if names is not None and names != columns:
        kind = "action" if names.state == columns.state else "state"
        own, given = getattr(columns, kind), getattr(names, kind)
        raise InputError(
            f"{str(path)!r} was learned from data with the {kind} columns {', '.join(own)}; this data has "
            f"{', '.join(given)}. Learn a graph from this data, or give the columns the same names in the same order."
        )
    return graph
