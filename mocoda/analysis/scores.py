"""Scores of rows from 0 to 1, the same for recorded and generated ones: valid, supported, agreed, new and confirmed.

What recorded rows have in common says what is valid; how they usually are says what is supported, agreed on and new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import rich.console
import torch
from torch import Tensor

from mocoda.augmentation.support import RECORDED, Support, SupportLimits, disagreement, fit_support, step_scale
from mocoda.data.formats.arrays import recorded_first
from mocoda.data.kinds import column_kinds, one_hot_groups
from mocoda.data.transitions import Transitions
from mocoda.data.where import EQUAL, Condition, quoted
from mocoda.dynamics import Ensemble
from mocoda.engine.errors import InputError
from mocoda.engine.networks import moments
from mocoda.engine.printed import Table, percent, rich_tables
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents.groups import BLOCK
from mocoda.parents.mixture import Manifold

# Limits, at which a score is 0.5.
RARE = 0.01  # share of recorded rows that are as rare, below which a row is not supported
DISPUTED = 3.0  # times the usual disagreement of a model, above which its members do not agree
DISPUTED_STEPS = 0.3  # disagreement in standard deviations of a step, where the model is not at hand
USUAL = 0.95  # share of recorded rows that have another one, recorded apart from them, within the limit of `new`
NEXT_SLACK = 0.1  # of a step's standard deviation, by which a next state may leave what was recorded
LOOKED_AT, PARTS = 50_000, 10  # recorded rows that `new` looks at, and parts of them that are compared with others
MIN_SWITCHED = 20  # recorded steps that turn a switch on or off, for what is tied to it
STRETCHES = 200  # of consecutive rows, where no episodes are known


def score_rows(
    data: Transitions,
    graph: LocalGraph,
    *,
    recorded: Transitions | None = None,
    model: Ensemble | None = None,
    seed: int | Stream = 0,
) -> Scores:
    """Scores every row of a table by what the recorded rows are like; see `Scores`.

    data         as `augment` makes it; recorded and generated rows are told apart by provenance
    recorded     the recorded rows, unless the data has them; then all rows of the data are generated
    model        says what its members agree on. Without one, the disagreement that is noted in provenance counts, and
                 if there is none, `agreed` is left out
    """
    graph.check_data(data)
    made = generated(data) if recorded is None else torch.ones(len(data), dtype=torch.bool, device=data.device)
    if recorded is None and bool(made.all()):
        raise InputError("all rows of the data are generated; pass recorded=, the rows that they were made from.")
    known = data[~made] if recorded is None else recorded
    scorer = RowScorer.fit(known, graph, model=model, seed=seed)
    details = scorer(data.rows, data.next_state, data.provenance.get("disagreement"), scorer.near.parts(made))
    if "confirmed" in data.provenance:
        details["confirmed"] = data.provenance["confirmed"].float()
    return Scores(details, {aspect: score > 0.5 for aspect, score in details.items()}, made, data.episode)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of rows, or of episodes, from 0 to 1 by aspect; prints as a table of their means.

    A row has an aspect if its score is above 0.5. Where there is a limit l, the score is 0.5 at the limit.

    valid      1 if the row and its next state are in the recorded range of every column, with unit vectors of length 1
               and values of the recorded kind (two values, whole numbers, one-hot), and obey the graph's constraints
               and what is tied together in all recorded rows (see `find_ties`); else 0
    supported  s / (s + l), where s is the share of recorded rows whose rarest part is as rare as the row's (by
               `SupportLimits`), and l is 0.01
    agreed     l / (l + d), where d is the ensemble's disagreement about the next state, and l is three times what it is
               for recorded rows; without the model, 0.3 standard deviations of a step
    new        d / (d + l), where d is the distance to the nearest recorded row, and l what 95% of recorded rows have to
               those of other episodes (see `Nearness`)
    confirmed  1 if a simulator says so, else 0; only of audited tables

    details    aspect -> scores, float32 (N,); -1 where a row was not audited
    flags      aspect -> the rows that have it, bool (N,); the episodes of which all rows have it
    generated  bool (N,)
    episode    the number of each row's episode, (N,), or of each episode; -1: none
    """

    details: Mapping[str, Tensor]
    flags: Mapping[str, Tensor]
    generated: Tensor
    episode: Tensor | None = None

    def means(self, rows: Tensor | None = None) -> dict[str, float | None]:
        """The mean score by aspect, of the rows of a mask (N,) if given; None if none has a score."""
        return self._mean(self.details, rows)

    def shares(self, rows: Tensor | None = None) -> dict[str, float | None]:
        """The share of rows that have each aspect, of the rows of a mask (N,) if given; None if none has a score."""
        return self._mean(self.flags, rows)

    def _mean(self, values: Mapping[str, Tensor], rows: Tensor | None) -> dict[str, float | None]:
        known = {aspect: score >= 0 if rows is None else (score >= 0) & rows for aspect, score in self.details.items()}
        chosen = {aspect: value[known[aspect]].double() for aspect, value in values.items()}
        return {aspect: float(value.mean()) if len(value) else None for aspect, value in chosen.items()}

    def worst(self, count: int) -> Tensor:
        """Generated rows (count,) to look at first: those with the lowest mean score of all aspects but `new`."""
        # What is not known, -1, counts as 1.
        judged = torch.stack([score.abs() for aspect, score in self.details.items() if aspect != "new"])
        made = self.generated.nonzero()[:, 0]
        return made[judged.mean(0)[made].argsort(stable=True)[:count]]

    def episodes(self) -> Scores:
        """The scores of episodes, which are the means of their rows', in the order of their numbers."""
        if self.episode is None or not bool((self.episode >= 0).any()):
            raise InputError("no row belongs to an episode: there are scores of rows only.")
        belongs = self.episode >= 0
        numbers, number = self.episode[belongs].unique(return_inverse=True)

        def mean(values: Tensor, known: Tensor) -> Tensor:
            """Of the rows of each episode whose score is known; -1 where none is."""
            sums = torch.zeros(2, len(numbers), dtype=torch.float64, device=number.device)
            sums.index_add_(1, number, torch.stack([values * known, known])[:, belongs].double())
            return torch.where(sums[1] > 0, sums[0] / sums[1], -1.0).float()

        known = {aspect: score >= 0 for aspect, score in self.details.items()}
        return Scores(
            {aspect: mean(score, known[aspect]) for aspect, score in self.details.items()},
            {aspect: mean(flag, known[aspect]) == 1 for aspect, flag in self.flags.items()},
            mean(self.generated, torch.ones_like(self.generated)) > 0,
            numbers,
        )

    def keep(self, data: Transitions) -> Transitions:
        """The data with its scores as provenance: `mocoda export --where "new and supported"` selects by them."""
        if len(data) != len(self.generated):
            raise InputError(f"the scores are of {len(self.generated):,} rows, and this data has {len(data):,}.")
        scores = {aspect: score for aspect, score in self.details.items() if aspect != "confirmed"}
        return replace(data, provenance={**data.provenance, **scores})

    def to_json(self) -> dict[str, Any]:
        """The number of recorded and of generated rows, their mean scores and the shares with each aspect."""
        kinds = {"recorded": ~self.generated, "generated": self.generated}
        return {
            name: {"rows": int(kind.sum()), "scores": self.means(kind), "shares": self.shares(kind)}
            for name, kind in kinds.items()
            if bool(kind.any())
        }

    def __rich__(self) -> rich.console.Group:
        kinds = self.to_json().items()
        heads = ["aspect", *(f"{one['rows']:,} {name}: share, mean score" for name, one in kinds)]
        rows = [
            [aspect]
            + [
                "–" if (share := one["shares"][aspect]) is None else f"{percent(share)}, {one['scores'][aspect]:.2f}"
                for _, one in kinds
            ]
            for aspect in self.details
        ]
        return rich_tables([Table("Rows with each aspect", heads, rows)])


def generated(data: Transitions) -> Tensor:
    """The rows that a recipe made, bool (N,), by provenance, or by the source of a file that `augment` wrote."""
    recipe = data.provenance.get("recipe")
    if recipe is not None:
        return recipe != RECORDED
    return torch.arange(len(data), device=data.device) >= recorded_first(data.source, len(data))


@dataclass(frozen=True, eq=False)
class RowScorer:
    """Scores rows by what some recorded rows are like; fitted once."""

    valid: Validity
    near: Nearness
    support: SupportLimits | Support
    model: Ensemble | None
    scale: Tensor
    disputed: float

    @staticmethod
    def fit(
        recorded: Transitions,
        graph: LocalGraph,
        *,
        model: Ensemble | None = None,
        seed: int | Stream = 0,
    ) -> RowScorer:
        stream = as_stream(seed, "scores", device=recorded.device)
        support: SupportLimits | Support
        try:
            apart = replace(recorded, episode=recorded_together(recorded), step=None)
            support = SupportLimits.fit(apart, graph, None, stream)
        except InputError:  # too few rows have the same local graph
            support = fit_support(recorded, graph, seed=stream)
        scale, disputed = step_scale(recorded), DISPUTED_STEPS
        if model is not None:
            disputed = DISPUTED * float(disagreement(model, recorded.rows, scale).mean())
        valid, near = Validity.of(recorded, graph), Nearness.fit(recorded, graph, stream)
        return RowScorer(valid, near, support, model, scale, disputed)

    def __call__(
        self,
        rows: Tensor,
        next_state: Tensor | None = None,
        apart: Tensor | None = None,
        part: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The scores (N,) of rows (N, S + A) by aspect.

        apart  (N,), the disagreement about them, which counts unless there is a model
        part   (N,), as for `Nearness.newness`
        """
        if isinstance(self.support, SupportLimits):
            support = self.support.notes(rows)["support"]
        else:
            support = torch.cat([self.support.score(block) for block in rows.split(BLOCK)])
        if self.model is not None:
            apart = disagreement(self.model, rows, self.scale)
        found = {"valid": self.valid(rows, next_state).float(), "supported": score(support, RARE)}
        if apart is not None:
            found["agreed"] = 1 - score(apart, self.disputed)
        return found | {"new": self.near.newness(rows, part)}


def score(values: Tensor, limit: float) -> Tensor:
    """Values from 0 upwards as scores (N,) from 0 to 1, float32: 0.5 at the limit."""
    values = values.double()
    return (values / (values + max(limit, 1e-9))).float()


def recorded_together(data: Transitions) -> Tensor:
    """A number (N,) that rows share which were recorded together: of their episode, or of a stretch of rows."""
    if data.episode is not None and int(data.episode.min()) >= 0 and bool((data.episode != data.episode[0]).any()):
        return data.episode
    return torch.arange(len(data), device=data.device) * STRETCHES // len(data)


@dataclass(frozen=True, eq=False)
class Nearness:
    """Distances between rows, in the factors' own units.

    The unit of a column is its standard deviation over the recorded rows, and each factor counts as much as a single
    column: the distance of two rows is the Euclidean norm over the factors of the mean square over a factor's columns.
    Columns that never change do not count.

    data     the recorded rows
    scale    (S + A,), what one unit of the distance is in each column; 0: it does not count
    part     (N,), which of ten parts each recorded row belongs to; rows that were recorded together share one
    points   (M, D), recorded rows in these units: all, or 50,000 of them drawn at random
    part_of  (M,), the part of each
    limit    the distance within which 95% of recorded rows have a row of another part
    """

    data: Transitions
    graph: LocalGraph
    scale: Tensor
    part: Tensor
    points: Tensor
    part_of: Tensor
    limit: float

    @staticmethod
    def fit(data: Transitions, graph: LocalGraph, stream: Stream) -> Nearness:
        scale = moments(data.rows)[1]
        for own in graph.factors.values():
            varying = [column for column in own if scale[column] > 0]
            scale[varying] *= len(varying) ** 0.5
        numbers, number = recorded_together(data).unique(return_inverse=True)
        part = (stream.child("parts").permutation(len(numbers)) % PARTS).to(number.device)[number]
        chosen = stream.child("looked at").permutation(len(data))[:LOOKED_AT].to(data.device)
        rows, part_of = data.rows[chosen], part[chosen]
        blank = Nearness(data, graph, scale, part, rows, part_of, 0.0)
        found = replace(blank, points=blank._in_units(rows))
        distance = found.distance(rows, part_of).double().sort().values
        return replace(found, limit=float(distance[int(USUAL * (len(distance) - 1))]))

    def parts(self, made: Tensor) -> Tensor:
        """The part (N,) of each row of a table: -1 for those that were `made` (N,); the others are recorded."""
        return torch.full_like(made, -1, dtype=torch.long).masked_scatter(~made, self.part)

    def distance(self, rows: Tensor, part: Tensor) -> Tensor:
        """The distance (N,) of rows (N, S + A) to the nearest recorded one that is not of the same `part` (N,)."""
        points, found = self._in_units(rows), torch.zeros(len(rows), device=rows.device)
        for own in part.unique():
            found[part == own] = nearest(points[part == own], self.points[self.part_of != own])
        return found

    def newness(self, rows: Tensor, part: Tensor | None = None) -> Tensor:
        """The score (N,) of rows (N, S + A) for being new, to recorded rows that are not of the same `part` (N,)."""
        part = torch.full((len(rows),), -1, device=rows.device) if part is None else part
        return score(self.distance(rows, part), self.limit)

    def coverage(self, visits: Tensor, true: Tensor, count: int, stream: Stream) -> dict[str, float]:
        """The shares of visited states (V, S) near "recorded" ones, and near "all" of these and of `true` ones (T, S).

        Near is as near as recorded states are to `count` others, the number of which the true ones were found.
        """
        chosen = stream.child("recorded").permutation(len(self.data))[:count].sort().values
        data = self.data[chosen.to(self.data.device)]
        only_states = replace(data, action=torch.zeros_like(data.action))
        near = Nearness.fit(only_states, self.graph, stream)
        visited, among = (
            near._in_units(torch.cat([states, states.new_zeros(len(states), data.action.shape[1])], 1))
            for states in (visits, true)
        )
        recorded = nearest(visited, near.points) <= near.limit
        every = recorded | (nearest(visited, among) <= near.limit)
        return {"recorded": float(recorded.double().mean()), "all": float(every.double().mean())}

    def _in_units(self, rows: Tensor) -> Tensor:
        counts = self.scale > 0
        return (rows[:, counts].double() / self.scale[counts]).float()


def nearest(points: Tensor, others: Tensor) -> Tensor:
    """The distance (N,) of points (N, D) to the nearest of others (M, D); infinite if there is none."""
    if not len(points) or not len(others):
        return torch.full((len(points),), torch.inf, device=points.device)
    from sklearn.metrics import pairwise_distances_argmin_min

    _, distance = pairwise_distances_argmin_min(points.cpu().numpy(), others.cpu().numpy())
    return torch.from_numpy(distance).float().to(points.device)


@dataclass(frozen=True, eq=False)
class Validity:
    """What all recorded rows have in common.

    manifold  the range of each column, over states and next states, and unit vectors
    groups    of columns that are one-hot
    slack     (S + A,), by which a next state may miss that: a tenth of a step's standard deviation
    ties      what is tied together in all states
    """

    manifold: Manifold
    kinds: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    slack: Tensor
    graph: LocalGraph
    ties: tuple[Condition, ...]

    @staticmethod
    def of(data: Transitions, graph: LocalGraph) -> Validity:
        following = torch.cat([data.next_state, data.action], 1)
        step = moments(data.next_state.double() - data.state.double())[1].float()
        slack = torch.cat([NEXT_SLACK * step, torch.zeros_like(data.action[0])])
        manifold = Manifold.of(torch.cat([data.rows, following]), graph)
        kinds = column_kinds(data)
        return Validity(manifold, kinds, one_hot_groups(data), slack, graph, find_ties(data, graph, kinds))

    def __call__(self, rows: Tensor, next_state: Tensor | None = None) -> Tensor:
        """Which rows (N, S + A) with next states (N, S) are valid, bool (N,)."""
        valid = self._keeps(rows, 0 * self.slack)
        if next_state is not None:
            valid &= self._keeps(torch.cat([next_state, rows[:, next_state.shape[1] :]], 1), self.slack)
        for tie in self.ties:
            valid &= tie(rows)
        return valid & self.graph.obeyed(rows, next_state)

    def _keeps(self, rows: Tensor, slack: Tensor) -> Tensor:
        low, high = self.manifold.low, self.manifold.high
        kept = self.manifold.holds(rows, slack)
        slack = slack + 1e-5 * (high - low)
        for column, kind in enumerate(self.kinds):
            own, off = rows[:, column], slack[column]
            if kind in ("binary", "one-hot"):
                kept &= (own - low[column]).abs().minimum((own - high[column]).abs()) <= off
            elif kind == "integer":
                kept &= (own - own.round()).abs() <= off.clamp(max=0.01)
        for group in map(list, self.groups):
            kept &= (rows[:, group].sum(1) - 1).abs() <= slack[group].sum()
        return kept


def find_ties(data: Transitions, graph: LocalGraph, kinds: Sequence[str]) -> tuple[Condition, ...]:
    """Switches and categories that have a value exactly where a column of another factor has one, in all states.

    A cube that is listed at (0, 0) exactly where the hand holds it is an example: only the two together make a state,
    and no edge says so. What goes along with a switch that is turned in fewer than 20 recorded steps is chance.
    """
    found: dict[tuple[int, str], Condition] = {}
    owner = {column: name for name in graph.children for column in graph.factors[name]}
    states = torch.cat([data.state, data.next_state])
    some = states[:: 1 + len(states) // LOOKED_AT]
    for switch, kind in enumerate(kinds[: graph.state_width]):
        ends = states[:, switch].aminmax()
        for value in {"binary": ends, "one-hot": ends[1:]}.get(kind, ()):
            on = states[:, switch] == value
            usual, switched = states[int(on.int().argmax())], on[: len(data)] != on[len(data) :]
            tied = ((some == usual) == (some[:, switch, None] == value)).all(0) & (switched.sum() >= MIN_SWITCHED)
            for other in tied.nonzero()[:, 0].tolist():
                if owner[other] == owner[switch] or bool(((states[:, other] == usual[other]) != on).any()):
                    continue
                one, two = quoted(data.columns[switch]), quoted(data.columns[other])
                a, b = f"{value:g}", f"{usual[other]:g}"
                text = f"({one} == {a} and {two} == {b}) or ({one} != {a} and {two} != {b})"
                found.setdefault((switch, owner[other]), Condition(text, EQUAL, tuple(data.columns)))
    return tuple(tie for tie in found.values() if bool(tie(data.rows).all()))
