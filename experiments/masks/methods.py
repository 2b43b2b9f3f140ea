"""The methods of the exam: each scores, for recorded rows, how likely each edge is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from experiments.masks.mechanisms import USUAL, Columns, Training, fit_mechanisms, without
from experiments.random_dag import make_world
from mocoda.data.transitions import Transitions
from mocoda.engine.progress import silent
from mocoda.engine.randomness import Stream
from mocoda.engine.registry import Registry
from mocoda.graph.learned import LearnedGraph
from mocoda.graph.learning import GateLearner, GradientLearner, learn_graph
from mocoda.graph.learning.learn import PLACE_COLUMNS
from mocoda.graph.local_graph import LocalGraph

OURS = GateLearner()
BLOCK = 2_048  # rows that are scored at a time
Scores = Callable[[Transitions], Tensor]  # N transitions -> float (N, parents, children); larger: likelier an edge


class NotApplicableError(Exception):
    """Why a method has nothing to say about a world."""


class Method(ABC):
    """Settings of a method, as the fields of a frozen dataclass, and how it learns from recorded rows.

    name         what it is called in results
    threshold    the score above which its authors say that there is an edge; None where they give none
    fixed        its answers are yes or no, cut at `threshold`: there is none to choose on validation rows
    probability  its scores are probabilities, so that their calibration can be measured
    looks_ahead  it reads the next state of the rows that it scores, so that it cannot mask states nobody has stepped
    """

    name: ClassVar[str]
    threshold: ClassVar[float | None] = None
    fixed: ClassVar[bool] = False
    probability: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False

    @abstractmethod
    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        """Learns from recorded rows.

        graph  says only what the factors are: every edge is in it
        """


METHODS: Registry[type[Method]] = Registry("method")


def in_blocks(score: Scores) -> Scores:
    """The same scores, made of a few rows at a time, and without gradients."""

    def scores(data: Transitions) -> Tensor:
        starts = range(0, len(data), BLOCK)
        return torch.cat([score(data[start : start + BLOCK]).detach() for start in starts])

    return scores


@dataclass(frozen=True)
class LearnedScores:
    """The probabilities of a learned graph's edges."""

    graph: LearnedGraph

    def __call__(self, rows: Transitions) -> Tensor:
        return self.graph.edge_probability(rows.rows).to(rows.device)


@METHODS.add
@dataclass(frozen=True)
class Learned(Method):
    """What the learned graph's masks are cut from."""

    name = "learned"
    threshold = GateLearner.caution
    probability = True

    learner: GateLearner = OURS

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        # What never meets in the data is taken to be apart, as it is in the rows that are judged.
        how: dict[str, Any] = {"learner": self.learner, "seed": seed, "unseen": "apart"}
        return LearnedScores(learn_graph(data, state=graph.state, action=graph.action, **how))


@METHODS.add
@dataclass(frozen=True)
class Gradient(Method):
    """The learner `gradient` of `mocoda.learn_graph`: how sensitive the predicted change is to a parent."""

    name = "gradient"
    threshold = GradientLearner.caution

    training: Training = USUAL

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        chosen = {"steps" if name == "updates" else name: value for name, value in vars(self.training).items()}
        learner, unknown = GradientLearner(**chosen), torch.zeros_like(graph.sparsest, device=data.device)
        tensors = learner.learn(data, graph, unknown, unknown, Stream(seed, "gradient", device=data.device), silent)
        return in_blocks(lambda rows: learner.probability(tensors, graph, rows.rows))


@METHODS.add
@dataclass(frozen=True)
class DropOne(Method):
    """log p(child | all) - log p(child | all but the parent), at least 0, of networks trained with a parent hidden."""

    name = "drop-one"
    threshold = 0.02
    looks_ahead = True

    training: Training = USUAL

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        model = fit_mechanisms(data, graph, self.training, Stream(seed, "drop-one", device=data.device), drop=True)
        parents = len(graph.parents)

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            inputs, changes = model.columns.inputs(rows.rows), model.columns.changes(rows)
            whole = model.log_likelihood(inputs, changes)
            lost = [whole - model.log_likelihood(inputs, changes, without(p, inputs, parents)) for p in range(parents)]
            return torch.stack(lost).clamp(min=0).permute(2, 0, 1)

        return scores


@METHODS.add
@dataclass(frozen=True)
class Redrawn(Method):
    """log p(child | row) - mean log p(child | row with the parent of other recorded rows), at least 0."""

    name = "redrawn"
    looks_ahead = True

    training: Training = USUAL
    draws: int = 8

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        stream = Stream(seed, "redrawn", device=data.device)
        model = fit_mechanisms(data, graph, self.training, stream)

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            inputs, changes = model.columns.inputs(rows.rows), model.columns.changes(rows)
            whole, lost = model.log_likelihood(inputs, changes), []
            for parent in range(len(graph.parents)):
                own, means = model.columns.owner == parent, torch.zeros_like(whole)
                for number in range(self.draws):
                    others = data.rows[stream.child("draw", parent, number).integers(len(data), len(rows))]
                    changed = torch.where(own, model.columns.inputs(others), inputs)
                    means += model.log_likelihood(changed, changes) / self.draws
                lost.append(whole - means)
            return torch.stack(lost).clamp(min=0).permute(2, 0, 1)

        return scores


@METHODS.add
@dataclass(frozen=True)
class ActionInfluence(Method):
    """Mean KL(child | action ‖ mixture over actions), for uniform actions; edges from state factors score 0."""

    name = "cai"
    threshold = 0.05

    training: Training = USUAL
    actions: int = 32

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        if not graph.action:
            raise NotApplicableError("there is no action.")
        stream = Stream(seed, "cai", device=data.device)
        model = fit_mechanisms(data, graph, self.training, stream)
        low, high = data.rows.amin(0), data.rows.amax(0)
        drawn = low + (high - low) * stream.child("actions").uniform(self.actions, graph.width)
        states, counts = len(graph.state), model.columns.counts[:, None]

        @in_blocks
        def scores(rows: Transitions) -> Tensor:
            found = rows.rows.new_zeros(len(rows), len(graph.parents), len(graph.children))
            for parent in range(states, len(graph.parents)):
                own = model.columns.owner == parent
                means, log_stds = zip(
                    *(model.predict(model.columns.inputs(torch.where(own, one, rows.rows))) for one in drawn),
                    strict=True,
                )
                mean, log_std = torch.stack(means), torch.stack(log_stds)  # (K, C, N, D)
                each = []
                for m, s in zip(means, log_stds, strict=True):
                    gap = (mean - m).square() + (2 * s).exp()
                    apart = ((log_std - s + 0.5 * gap / (2 * log_std).exp() - 0.5) * counts).sum(-1)  # KL, (K, C, N)
                    each.append(math.log(self.actions) - (-apart).logsumexp(0))
                found[:, parent] = torch.stack(each).mean(0).T
            return found

        return scores


@METHODS.add
@dataclass(frozen=True)
class Distance(Method):
    """Minus the distance between two positions; edges from actions, which are nowhere, score lowest."""

    name = "distance"

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        places = [_place(data.columns, graph.factors[name]) for name in graph.state]
        common = min(map(len, places))

        def scores(rows: Transitions) -> Tensor:
            place = torch.stack([rows.state[:, own[:common]] for own in places], 1)
            apart = (place[:, :, None] - place[:, None]).norm(dim=3)
            nowhere = apart.max().expand(len(rows), len(graph.action), len(graph.children))
            return -torch.cat([apart, nowhere], 1)

        return scores


@METHODS.add
@dataclass(frozen=True)
class Moved(Method):
    """How much a child changed, in standard deviations of its recorded changes: the same for all its parents."""

    name = "moved"
    threshold = 1.0
    looks_ahead = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        columns = Columns(data, graph)

        def scores(rows: Transitions) -> Tensor:
            change = (columns.changes(rows).square() * columns.counts[:, None]).sum(2)
            usual = columns.counts.sum(1, keepdim=True)
            return (change / usual).sqrt().T[:, None].expand(-1, len(graph.parents), -1)

        return scores


@METHODS.add
@dataclass(frozen=True)
class Given(Method):
    """The mask that the task's authors wrote; the truth itself where masks are exact."""

    name = "given"
    threshold = 0.5
    fixed = probability = True

    def fit(self, data: Transitions, graph: LocalGraph, *, seed: int) -> Scores:
        task = data.source.get("task")
        if task is None:
            raise NotApplicableError("the data does not say which task it is of.")
        written = make_world(task).graph
        return lambda rows: written.mask(rows.rows).float()


def _place(names: tuple[str, ...], columns: tuple[int, ...]) -> list[int]:
    """The columns that say where a factor is, by their names (box.x, box_x); the first two unless there are any."""
    named = [column for column in columns if names[column].replace(".", "_").rpartition("_")[2] in PLACE_COLUMNS]
    return named or list(columns[:2])
