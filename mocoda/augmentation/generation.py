"""Steps 1 to 3 together: the recorded rows, followed by generated ones with next states, rewards and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from mocoda.augmentation.support import Provenance, fit_support, local_graphs, recipe_number, spread, step_scale
from mocoda.data.transitions import Transitions, concatenate
from mocoda.dynamics import Dynamics, Ensemble
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Model, Parents, ParentsWithChildren
from mocoda.parents.groups import BLOCK, neighbourhood
from mocoda.parents.recipe import Draw, Region, RegionParents, draw_from, within
from mocoda.parents.recombination import GroupedParents

MIN_REDRAWN = 1_024  # rows drawn again where filters have rejected some, at least
# The filters are given up when they accept less than this share of so many rows.
MIN_ACCEPTED, JUDGED_ROWS = 0.001, 20_000


def augment(
    data: Transitions,
    parents: Parents,
    model: Model | None = None,
    *,
    rows: int,
    task: Labels | GoalLabels | None = None,
    seed: int | Stream = 0,
    keep_recorded: bool = True,
    hindsight: float = 0.0,
    graph: LocalGraph | None = None,
    provenance: bool = True,
    max_disagreement: float | None = None,
    min_support: float | None = None,
    reuse: bool = True,
    region: str | Region | None = None,
    progress: Progress = silent,
) -> Transitions:
    """The recorded rows, followed by `rows` generated ones.

    Recorded rows keep their episodes; generated ones are of none (-1).

    parents           where new states and actions come from, as from `fit_parents`, or any object with
                      `sample(n, seed=)`
    model             predicts their next states; recipes that recombine recorded transitions ("emp", "coda") need none
    task              labels all rows, and draws a goal for each if it has goals, for recorded rows too. Without one, no
                      row has a reward and none is terminal
    keep_recorded     False: only the generated rows
    hindsight         the share of rows whose goal is what their own next state achieves
    graph             for provenance; the model's, the parents' or the task's unless given
    provenance        note where rows come from (see mocoda.augmentation.support). The rows are the same with and
                      without; without, they are made faster
    max_disagreement  reject generated rows about which the ensemble disagrees more, and draw others
    min_support       reject generated rows with less support, and draw others
    reuse             where all that a factor depends on comes from one recorded row, in which it depends on the same,
                      its next value is the recorded one; False: what the model predicts
    region            generate only rows inside it, such as "box1.x > 1.9 and box2.x > 1.9", though no recorded row may
                      be (see mocoda.parents.recipe.within)
    """
    plan = Augmentation(
        data,
        parents if region is None else within(parents, region, data, seed=seed),
        model,
        rows=rows,
        task=task,
        seed=seed,
        keep_recorded=keep_recorded,
        hindsight=hindsight,
        graph=graph,
        provenance=provenance,
        max_disagreement=max_disagreement,
        min_support=min_support,
        reuse=reuse,
    )
    chunks = list(plan.chunks(progress))
    return concatenate(chunks, chunks[-1].source)


class Piece(NamedTuple):
    """A part of the table, and how many rows were drawn for it: more than it has where filters reject some."""

    table: Transitions
    drawn: int


@dataclass(frozen=True, eq=False)
class Augmentation:
    """An augmented table that is made piece by piece; its fields are the arguments of `augment`.

    The table is made in pieces, first the recorded rows if they are kept. `chunks` yields them one by one, so that
    `augment_to_file` can write a table larger than memory. A piece does not depend on which process makes it, or when.

    chunk  rows generated at a time, part of what a seed means; None: as many as suit the device
    """

    data: Transitions
    parents: Parents
    model: Model | None = None
    _: KW_ONLY
    rows: int
    task: Labels | GoalLabels | None = None
    seed: int | Stream = 0
    keep_recorded: bool = True
    hindsight: float = 0.0
    graph: LocalGraph | None = None
    provenance: bool = True
    max_disagreement: float | None = None
    min_support: float | None = None
    reuse: bool = True
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.rows < 0 or (self.rows == 0 and not self.keep_recorded):
            raise InputError(f"rows must be positive, the number of rows to generate, got {self.rows}.")
        if self.model is None and self.needs_model and not (self.reuse and follows_recorded(self.parents)):
            raise InputError("these parents have no next states of their own; pass model=mocoda.fit_dynamics(...).")
        limits = {"max_disagreement": self.max_disagreement, "min_support": self.min_support}
        check_options(self.recipe, self.needs_model, self.hindsight, self.provenance, **limits)
        if self.hindsight and not isinstance(self.task, GoalLabels):
            raise InputError("hindsight needs a task with goals: methods goals, achieved and label(..., goal).")
        if self.max_disagreement is not None and not isinstance(self.model, Ensemble):
            raise InputError(
                "max_disagreement needs an ensemble, with `predict` and `graph`, such as from mocoda.fit_dynamics, "
                f"got {type(self.model).__name__}."
            )
        if self.min_support is not None and self._graph is None:
            raise InputError("min_support needs a graph, which says which columns belong together; pass graph=.")
        if self._graph is not None:
            self._graph.check_constraints(self.data)

    @property
    def recipe(self) -> str:
        """The name of the recipe, or of the class of parents of the user's own."""
        return getattr(self.parents, "name", type(self.parents).__name__)

    @property
    def needs_model(self) -> bool:
        """Whether next states come from the model."""
        return not isinstance(self.parents, ParentsWithChildren)

    @property
    def piece_rows(self) -> int:
        """Rows generated at a time: part of what a seed means on this kind of device."""
        return self.chunk or (1_048_576 if self.data.device.type == "cuda" else 65_536)

    @cached_property
    def sizes(self) -> list[int]:
        """The rows of each piece."""
        generated = [min(self.piece_rows, self.rows - start) for start in range(0, self.rows, self.piece_rows)]
        return [len(self.data), *generated] if self.keep_recorded else generated

    def prepare(self) -> None:
        """Fits, once, what pieces need besides the parents and the model, so that processes need not."""
        _ = self._provenance, self._recorded_next, self._source

    def chunks(self, progress: Progress = silent) -> Iterator[Transitions]:
        """The pieces in order; the last one's source describes the whole table."""
        drawn = 0
        for number in range(len(self.sizes)):
            piece = self.piece(number, drawn)
            drawn += piece.drawn
            yield piece.table
            if number >= self.keep_recorded:
                progress("augment", self._generated(number), self.rows)

    def piece(self, number: int, drawn: int = 0) -> Piece:
        """One of the pieces, when `drawn` rows were drawn for those before it."""
        if self.keep_recorded and number == 0:
            notes = {} if self._provenance is None else self._provenance.of_recorded(self.data)
            recorded = _Rows(self.data.rows, self.data.next_state, notes)
            place = (self.data.episode, self.data.step)
            return Piece(self._label(recorded, self._stream.child("recorded"), self.source(0, 0), *place), 0)
        part = self._stream.child(number - self.keep_recorded)
        rows, new = self._generate(self.sizes[number], part)
        source = self.source(drawn + new, self._generated(number))
        known = self.keep_recorded and self.data.episode is not None
        none = torch.full((len(rows.rows),), -1, device=self.data.device) if known else None
        return Piece(self._label(rows, part, source, none, none), new)

    def source(self, drawn: int, generated: int | None = None) -> dict[str, Any]:
        """The table's source, when of `drawn` rows `generated` were accepted, all of them unless given."""
        generated = self.rows if generated is None else generated
        source = dict(self._source)
        if self._filters:
            share = {"drawn_rows": drawn, "accepted_share": generated / drawn if drawn else None}
            source["filter"] = {**self._filters, **share}
        return source

    @property
    def _filters(self) -> dict[str, Any]:
        constraints = None if self._graph is None else [*self._graph.constraints] or None
        limits = {"max_disagreement": self.max_disagreement, "min_support": self.min_support}
        return {name: limit for name, limit in {**limits, "constraints": constraints}.items() if limit is not None}

    @property
    def _graph(self) -> LocalGraph | None:
        known = (getattr(source, "graph", None) for source in (self.model, self.parents, self.task))
        return self.graph or next((graph for graph in known if isinstance(graph, LocalGraph)), None)

    @property
    def _stream(self) -> Stream:
        return as_stream(self.seed, "augment", device=self.data.device)

    @cached_property
    def _provenance(self) -> Provenance | None:
        if not self.provenance:
            return None
        graph = self._graph
        return Provenance(graph, None if graph is None else fit_support(self.data, graph, seed=self._stream.seed))

    @cached_property
    def _scale(self) -> Tensor | None:
        """The unit of disagreement, if that is to be noted."""
        return step_scale(self.data) if self.provenance else None

    @cached_property
    def _recorded_next(self) -> RecordedNext | None:
        """What is known to follow, unless the model ignores the graph, and so what is recorded with the same edges."""
        graph, ignored = self._graph, getattr(self.model, "architecture", None) == "full"
        if graph is None or ignored or not (self.reuse and self.needs_model):
            return None
        return RecordedNext.of(self.data, graph)

    @cached_property
    def _source(self) -> dict[str, Any]:
        graph = self._graph if self.provenance else None
        return {
            "recorded": dict(self.data.source),
            "recorded_rows": len(self.data) if self.keep_recorded else 0,
            "generated_rows": self.rows,
            "recipe": self.recipe,
            "model": getattr(self.model, "settings", type(self.model).__name__),
            "task": getattr(self.task, "name", None),
            "seed": self._stream.seed,
            **({"reuse": self.reuse} if self.needs_model else {}),
            **getattr(self.parents, "source", {}),  # such as neighbourhoods that a recipe skipped
            **getattr(self.task, "source", {}),  # such as how well a reward was learned
            **({"hindsight": self.hindsight} if isinstance(self.task, GoalLabels) else {}),
            **({} if graph is None else {"local_graphs": local_graphs(graph, self.data.rows)}),
        }

    def _generated(self, number: int) -> int:
        """The rows generated up to and with a piece."""
        return sum(self.sizes[self.keep_recorded : number + 1])

    def _generate(self, n: int, part: Stream) -> tuple[_Rows, int]:
        """n rows that pass the filters, and how many were drawn for them."""
        accepted: list[_Rows] = []
        have = drawn = 0
        while have < n:
            size = self._size(n, have, drawn)
            drawn_rows, follows = self._draw(size, part.child("again", len(accepted)) if accepted else part)
            number, known = recipe_number(self.recipe), self._provenance
            notes = {} if known is None else known.of(drawn_rows, number, follows.predicted, follows.apart)
            new = _Rows(drawn_rows.rows, follows.next_state, notes)
            if self._filters:
                passing = self._passes(new).nonzero()[: n - have, 0]
                new = new.select(passing)
                size = int(passing[-1]) + 1 if have + len(passing) == n else size  # what comes after was not needed
            accepted.append(new)
            have, drawn = have + len(new.rows), drawn + size
            if drawn >= JUDGED_ROWS and have < MIN_ACCEPTED * drawn:
                limits = " and ".join(f"{name}={limit}" for name, limit in self._filters.items())
                raise InputError(
                    f"only {have} of {drawn:,} rows that recipe {self.recipe!r} draws pass {limits}. Filter less, or "
                    "use a recipe that stays nearer to the data."
                )
        return (accepted[0] if len(accepted) == 1 else _Rows.join(accepted)), drawn

    def _size(self, n: int, have: int, drawn: int) -> int:
        """Rows to draw next: n, and once some were rejected as many as will probably do."""
        if drawn == 0:
            return n
        share = max(have / drawn, MIN_ACCEPTED)
        return min(max(n, MIN_REDRAWN), max(MIN_REDRAWN, round(1.1 * (n - have) / share)))

    def _passes(self, new: _Rows) -> Tensor:
        graph, passes = self._graph, torch.ones(len(new.rows), dtype=torch.bool, device=new.rows.device)
        if self.max_disagreement is not None:
            passes &= new.notes["disagreement"] <= self.max_disagreement
        if self.min_support is not None:
            passes &= new.notes["support"] >= self.min_support
        return passes if graph is None else passes & graph.obeyed(new.rows.float(), new.next_state.float())

    def _draw(self, n: int, part: Stream) -> tuple[Draw, Following]:
        width, states = self.data.rows.shape[1], self.data.state.shape[1]
        drawn = draw_from(self.parents, n, seed=part.child("parents"))
        call = f"parents.sample{'' if drawn.next_state is None else '_with_children'}({n})"
        check_shape(call, "rows", drawn.rows, (n, width))
        if drawn.next_state is not None:
            check_shape(call, "next states", drawn.next_state, (n, states))
            return drawn, Following(drawn.next_state, torch.zeros_like(drawn.next_state, dtype=torch.bool))
        recorded = self._recorded_next
        known = nothing_known(drawn.rows, states) if recorded is None else recorded.follow(drawn)
        return drawn, what_follows(self.model, drawn.rows, known, part.child("model"), self._scale)

    def _label(
        self, made: _Rows, stream: Stream, source: dict[str, Any], episode: Tensor | None, step: Tensor | None
    ) -> Transitions:
        rows, next_state = made.rows.float(), made.next_state.float()  # as the table keeps them
        state, action = rows.split([self.data.state.shape[1], self.data.action.shape[1]], 1)
        labels = labels_of(state, action, next_state, self.task, self.hindsight, stream)
        columns, notes = self.data.columns, made.notes
        return Transitions(state, action, next_state, *labels, columns, source, notes, episode, step)


def follows_recorded(parents: Parents) -> bool:
    """Whether all next values of rows that these parents draw can be taken from recorded rows, without a model.

    That is so if whole groups are copied: all that a factor depends on then comes from one row, with the same edges.
    """
    drawn = parents.proposals if isinstance(parents, RegionParents) else parents
    return isinstance(drawn, GroupedParents) and not drawn.matched


def check_options(
    recipe: str,
    needs_model: bool,
    hindsight: float,
    provenance: bool,
    max_disagreement: float | None,
    min_support: float | None,
) -> None:
    """Refuses what no data could satisfy; `needs_model`: whether the recipe's next states come from a model."""
    if not 0 <= hindsight <= 1:
        raise InputError(f"hindsight must be a share of the rows between 0 and 1, got {hindsight}.")
    for name, limit in (("max_disagreement", max_disagreement), ("min_support", min_support)):
        if limit is not None and not provenance:
            raise InputError(f"{name} filters by provenance; leave out provenance=False.")
    if max_disagreement is not None and not max_disagreement > 0:
        raise InputError(f"max_disagreement must be positive, got {max_disagreement}.")
    if max_disagreement is not None and not needs_model:
        raise InputError(
            f"recipe {recipe!r} recombines recorded transitions, without a model that could disagree; leave out "
            "max_disagreement."
        )
    if min_support is not None and not 0 <= min_support < 1:
        raise InputError(f"min_support must be a share of the data, from 0 to below 1, got {min_support}.")


class _Rows(NamedTuple):
    """Rows (N, S + A), their next states (N, S), and notes (N,) on them."""

    rows: Tensor
    next_state: Tensor
    notes: dict[str, Tensor]

    def select(self, index: Tensor) -> _Rows:
        notes = {name: note[index] for name, note in self.notes.items()}
        return _Rows(self.rows[index], self.next_state[index], notes)

    @staticmethod
    def join(parts: Sequence[_Rows]) -> _Rows:
        notes = {name: torch.cat([part.notes[name] for part in parts]) for name in parts[0].notes}
        return _Rows(torch.cat([p.rows for p in parts]), torch.cat([p.next_state for p in parts]), notes)


# --- labels


class Labels(Protocol):
    """A task, as far as it labels transitions."""

    def label(self, state: Tensor, action: Tensor, next_state: Tensor) -> tuple[Tensor, Tensor]:
        """Reward (N,) and terminal, bool (N,)."""


@runtime_checkable
class GoalLabels(Protocol):
    """A task with goals: every transition can be labelled for any goal."""

    def goals(self, n: int, *, seed: int | Stream, device: torch.device | str) -> Tensor:
        """Goals (n, G) of the target task."""

    def achieved(self, state: Tensor) -> Tensor:
        """The goals (N, G) that are reached in states (N, S)."""

    def label(self, state: Tensor, action: Tensor, next_state: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """Reward (N,) and terminal, bool (N,), for goals (N, G)."""


Labelled = tuple[Tensor | None, Tensor | None, Tensor | None]  # reward, terminal and goal


def labels_of(
    state: Tensor,
    action: Tensor,
    next_state: Tensor,
    task: Labels | GoalLabels | None,
    hindsight: float,
    stream: Stream,
) -> Labelled:
    """Reward (N,), terminal (N,) and goal (N, G) of rows; None where the task has none."""
    if isinstance(task, GoalLabels):
        goal = draw_goals(next_state, task, hindsight, stream)
        return *task.label(state, action, next_state, goal), goal
    if task is not None:
        return *task.label(state, action, next_state), None
    return None, None, None


def draw_goals(
    next_state: Tensor, task: Any, hindsight: float, stream: Stream, recorded: Tensor | None = None
) -> Tensor:
    """A goal (N, G) for every row: the recorded one or else one of the target task, or what the row achieves."""
    drawn = recorded
    if drawn is None:
        drawn = task.goals(len(next_state), seed=stream.child("goals"), device=next_state.device).float()
    if hindsight == 0:
        return drawn
    achieved = task.achieved(next_state).float()
    check_shape("task.achieved", "goals", achieved, tuple(drawn.shape))
    own = stream.child("hindsight").uniform(len(next_state), 1) < hindsight
    return torch.where(own, achieved, drawn)


# --- next states: recorded ones where these are known, and elsewhere those that a model predicts


def recorded_children(mask: Tensor, source: Tensor, edges: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """Which children of n rows have a known next value, (n, children), and the recorded rows (n, children) it is of.

    It is known where all that a child depends on is of one recorded row, in which it depends on the same.

    mask    (n, parents, children), the edges at the rows
    source  (n, parents), the recorded row that a factor's value is of, or -1
    edges   (K, parents, children), the local graphs of the recorded rows
    kind    (N,), which of these each recorded row has
    """
    needed = torch.where(mask, source[:, :, None], -1).amax(1)
    of_one = (~mask | (source[:, :, None] == needed[:, None])).all(1) & (needed >= 0)
    place = needed.clamp(min=0)
    each = torch.arange(mask.shape[2], device=mask.device)
    same_edges = (edges[kind[place], :, each] == mask.transpose(1, 2)).all(2)
    return of_one & same_edges, place


class Known(NamedTuple):
    """Next states (n, S), and in which columns (n, S) they are known; the others are 0."""

    next_state: Tensor
    given: Tensor


@dataclass(frozen=True, eq=False)
class RecordedNext:
    """Next values of recorded rows (N, S + A), for new rows that are made of their parts.

    edges, kind  as in `recorded_children`
    """

    graph: LocalGraph
    rows: Tensor
    next_state: Tensor
    edges: Tensor
    kind: Tensor

    @staticmethod
    def of(data: Transitions, graph: LocalGraph) -> RecordedNext:
        numbers = neighbourhood(graph, data.rows)
        kinds, kind = numbers.unique(return_inverse=True)
        every = torch.arange(len(kind), device=kind.device)
        one_of = torch.zeros_like(kinds).scatter_reduce(0, kind, every, "amax")
        return RecordedNext(graph, data.rows, data.next_state, graph.mask(data.rows[one_of]), kind)

    def follow(self, drawn: Draw) -> Known:
        """The next states of drawn rows, as far as they are recorded."""
        columns = torch.arange(self.next_state.shape[1], device=self.rows.device)
        owner = self.graph.owner.to(self.rows.device)[columns]
        found = []
        for rows, donors in zip(drawn.rows.split(BLOCK), drawn.donors.split(BLOCK), strict=True):
            source = sources(self.graph, self.rows, rows, donors)
            known, place = recorded_children(self.graph.mask(rows), source, self.edges, self.kind)
            given = known[:, owner]
            found.append((torch.where(given, self.next_state[place[:, owner], columns], 0.0), given))
        return Known(*map(torch.cat, zip(*found, strict=True)))


def sources(graph: LocalGraph, recorded: Tensor, rows: Tensor, donors: Tensor) -> Tensor:
    """The recorded row (n, parents) whose values a factor of rows (n, S + A) has; -1 if those of none, or of several.

    recorded  (N, S + A)
    donors    (n, S + A), the recorded row that each value was taken from, or -1
    """
    place = donors.clamp(min=0, max=len(recorded) - 1)
    copied = (donors == place) & (rows == recorded.gather(0, place))
    found = []
    for columns in map(list, graph.factors.values()):
        whole = copied[:, columns].all(1) & (donors[:, columns] == donors[:, columns[:1]]).all(1)
        found.append(torch.where(whole, donors[:, columns[0]], -1))
    return torch.stack(found, 1)


class Following(NamedTuple):
    """What follows n rows.

    next_state  (n, S)
    predicted   (n, S), whether a model said so
    apart       (n, children), how far the model's members disagree about what they said; None where nobody asked
    """

    next_state: Tensor
    predicted: Tensor
    apart: Tensor | None = None


def nothing_known(rows: Tensor, states: int) -> Known:
    """No known next value for any column of the next states of rows (n, S + A)."""
    return Known(
        rows.new_zeros(len(rows), states), torch.zeros(len(rows), states, dtype=torch.bool, device=rows.device)
    )


def what_follows(
    model: Model | None,
    rows: Tensor,
    known: Known,
    seed: int | Stream,
    scale: Tensor | None = None,
    middle: bool = False,
) -> Following:
    """What follows rows (n, S + A): what is known, and elsewhere what a model says.

    scale   (S,), the unit of the disagreement, for which all members of an ensemble are asked; None: do not note it
    middle  with `scale`: an ensemble whose `sample` draws one of its members says the mean of all instead
    """
    next_state, given = known
    asked, apart = (~given.all(1)).nonzero()[:, 0], None
    there, given_there = rows[asked], given[asked]
    if not len(asked):
        return Following(next_state, ~given)
    if model is None:
        raise InputError(
            f"{len(asked)} of {len(rows)} next states are not recorded; pass model=mocoda.fit_dynamics(...)."
        )
    if scale is not None and isinstance(model, Ensemble):
        found = model.predict(there)
        apart = torch.zeros(len(rows), len(model.graph.children), device=rows.device)
        apart[asked] = spread(torch.where(given_there, next_state[asked], found.mean), model.graph, scale)
        if isinstance(model, Dynamics) and (middle or model.says_mean):
            said = model.likely(found, model.noise(len(there), seed))
        else:
            said = found.mean.mean(0) if middle else model.sample(there, seed=seed)
    else:
        said = model.sample(there, seed=seed)
    check_shape("model.sample", "next states", said, (len(there), next_state.shape[1]))
    next_state[asked] = torch.where(given_there, next_state[asked], said.float())
    return Following(next_state, ~given, apart)


def check_shape(call: str, what: str, array: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != shape:
        raise InputError(f"{call} must return {what} of shape {shape}, got {tuple(array.shape)}.")
