"""Audit: the share of generated rows that are true, by a simulator or any function that knows the true next states."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import packages_distributions, version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import rich.console
import torch
from rich.markup import escape
from torch import Tensor

from mocoda.analysis.replay import Step, replay
from mocoda.analysis.scores import Nearness, generated
from mocoda.augmentation.support import OWN, RECORDED
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, check_counts, unknown_name
from mocoda.engine.files import versions
from mocoda.engine.printed import Printed, Table, rich_tables
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.engine.statistics import Cell, area_under_curve, share_of
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN

DEFAULT_TOLERANCE = 0.1  # in standard deviations of a step
RESTING = 0.01  # of the spread of a column that never changes within a step: its own tolerance
MAX_GRAPHS = 12  # local graphs that are listed, the commonest
NOT_AUDITED = -1
# Scores that may separate true rows from others, and their values for true rows.
PREDICTORS = {"support": "most support", "disagreement": "least disagreement"}
Tolerance = float | Mapping[str, float]
Columns = Sequence[str | int]


def audit(
    data: Transitions,
    step: Step,
    graph: LocalGraph,
    *,
    tolerance: Tolerance | None = None,
    columns: Columns | None = None,
    rows: int | None = None,
    episodes: int | None = None,
    target: Transitions | Tensor | None = None,
    seed: int | Stream = 0,
    workers: int | None = 0,
    checkpoint: str | Path | None = None,
    progress: Progress = silent,
) -> Audit:
    """Replays rows by `step`, and reports the share of the generated rows that are true.

    A row is confirmed if every factor's next value is within the tolerance of the value that `step` returns. Recorded
    rows are treated alike: their shortfall from 100% is noise, or what the state does not contain.

    data        as `augment` makes it, with provenance. Without provenance, all rows count as generated
    step        rows (N, S + A) -> true next states (N, S), numpy or torch. It gets float32 tensors on the data's device
    tolerance   Euclidean distance in the data's units: one number, or one per factor; factors that a mapping leaves out
                are not compared. None: a tenth of the standard deviation of the factor's recorded steps
    columns     columns of the state that are compared, by name or number; None: all
    rows        number of rows to audit, drawn at random from the whole table
    episodes    audit only the rows of this many generated episodes, and of as many recorded ones, drawn at random. Each
                row is replayed from its own state
    target      states (M, S) that the task visits which an agent is to learn, or a table of them, such as a
                demonstration. `coverage` says which share of them has a true row near it
    workers     processes that call `step`, which they must be able to import. None: one per core; 0: this process
    checkpoint  file that keeps finished rows, so that a second call continues from there; it is not removed
    """
    graph.check_data(data)
    audited, limits = audited_rows(data), Limits.of(data, graph, tolerance, columns)
    stream = as_stream(seed, "audit", device="cpu")
    chosen = _chosen(data, audited, rows, episodes, stream)
    if not bool(audited[chosen].any()):
        raise InputError(
            f"none of the {len(chosen):,} rows drawn is a generated one; {int(audited.sum()):,} of {len(data):,} "
            "are. Audit more rows."
        )
    table = data[chosen]
    truth = replay(
        table.rows,
        step,
        data.state.shape[1],
        numbers=chosen,
        workers=workers,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        progress=progress,
    )
    whole = rows is None or rows >= len(data)
    made, near = generated(data), None
    if bool(made.any()) and not bool(made.all()):
        near = Nearness.fit(data[~made], graph, as_stream(seed, "scores", device=data.device))  # as in score_rows
    part = None if near is None else near.parts(made)[chosen]
    found = judge(table, truth, graph, tolerance=limits, seed=stream, whole=whole, near=near, part=part, target=target)
    verdict = torch.full((len(data),), NOT_AUDITED, device=data.device)
    verdict[chosen] = found.verdict
    return replace(found, verdict=verdict, simulator=_simulator(step))


def judge(
    data: Transitions,
    truth: Tensor,
    graph: LocalGraph,
    *,
    tolerance: Tolerance | Limits | None = None,
    columns: Columns | None = None,
    seed: int | Stream = 0,
    whole: bool = True,
    near: Nearness | None = None,
    part: Tensor | None = None,
    target: Transitions | Tensor | None = None,
) -> Audit:
    """Audits a table whose true next states (N, S) are known, as from `replay`; options as for `audit`.

    whole  whether episodes have all their rows, so that true episodes can be counted
    near   measures what is new, from the recorded rows
    part   (N,), as for `Nearness.distance`
    """
    limits = tolerance if isinstance(tolerance, Limits) else Limits.of(data, graph, tolerance, columns)
    off, within = limits.distances(data.next_state, truth), limits.within(data.next_state, truth)
    confirmed, new = within.all(1), audited_rows(data)
    known = {name: data.provenance[name] for name in ("support", "disagreement") if name in data.provenance}
    scores = {name: -values if name == "disagreement" else values for name, values in known.items()}
    total = share_of(confirmed[new])
    newness = None if near is None else near.newness(data.rows, part)
    is_new = None if newness is None else newness > 0.5
    coverage = None
    if near is not None and target is not None:
        visits = target.state if isinstance(target, Transitions) else target
        coverage = near.coverage(
            visits, data.state[confirmed & new], int(new.sum()), as_stream(seed, "coverage", device="cpu")
        )
    return Audit(
        confirmed=total["share"],
        interval=total["interval"],
        rows=total["rows"],
        by={
            "recipe": _by_recipe(data, confirmed, is_new),
            "local_graph": _by_local_graph(data, graph, confirmed, new),
            **_by_episode(data, confirmed, new, whole),
            "factor": {
                factor: _compare(within[:, i], new) | {"median_error": float(off[new, i].median())}
                for i, factor in enumerate(limits.tolerance)
            },
        },
        predictors={name: area_under_curve(score[new], confirmed[new]) for name, score in scores.items()},
        tolerance=limits.tolerance,
        columns=tuple(data.columns[column] for column in limits.columns),
        verdict=confirmed.long(),
        new=None if is_new is None else float(is_new[new].double().mean()),
        true_and_new=None if is_new is None else share_of((confirmed & is_new)[new]),
        coverage=coverage,
    )


@dataclass(frozen=True, eq=False)
class Audit(Printed):
    """The share of generated rows that a simulator confirms, in total and by kind; prints as tables.

    confirmed   the share of the generated rows that are true, from 0 to 1; of all rows if none is known to be generated
    interval    its 95% confidence interval (Wilson)
    rows        number of generated rows that were audited
    by          shares with their intervals and rows: by recipe, local_graph and factor, as
                `by["recipe"]["mocoda"]["share"]`. Recorded rows are `by["recipe"]["recorded"]`, and under "recorded" in
                each of the others. If generated rows belong to episodes, also by tenths of their steps, and by episode
                and recipe the share of `episodes` whose steps are all true, with the median number of steps before the
                first that is not, `true_steps`
    predictors  how well support and disagreement, if the data has them, separate true rows from others without a
                simulator: AUROC (0.5: not at all) with its 95% interval
    tolerance   by factor
    columns     of the state that were compared
    verdict     (N,) int64, of every row of the data: 1 confirmed, 0 not, -1 not audited
    new         the share of the generated rows that no recorded row is near to (see mocoda.analysis.scores.Nearness);
                None, as the next, unless the data has recorded and generated rows
    true_and_new
                the share, with its interval, that is both confirmed and new
    coverage    the share of the target's states that have a recorded one near them, "recorded", and that have a
                recorded or a confirmed one, "all"; None without a target
    simulator   the `name` of what replayed the rows, and `versions` of packages that it may depend on
    """

    confirmed: float
    interval: tuple[float, float]
    rows: int
    by: dict[str, dict[str, Cell]]
    predictors: dict[str, Cell]
    tolerance: dict[str, float]
    columns: tuple[str, ...]
    verdict: Tensor
    new: float | None = None
    true_and_new: Cell | None = None
    coverage: dict[str, float] | None = None
    simulator: dict[str, Any] = field(default_factory=dict)

    def keep(self, data: Transitions) -> Transitions:
        """The data with the verdicts as provenance `confirmed`, of which 1 is true; its source keeps the results."""
        if len(data) != len(self.verdict):
            raise InputError(f"the audit was of {len(self.verdict):,} rows, and this data has {len(data):,}.")
        found = self.to_json()
        packages = ", ".join(f"{name} {number}" for name, number in self.simulator.get("versions", {}).items())
        noted = {name: found[name] for name in ("simulator", "confirmed", "interval", "rows", "tolerance", "columns")}
        noted["summary"] = f"{self.simulator.get('name')} ({packages}): {summary(found)}"
        source = {**data.source, "audit": noted}
        return replace(data, provenance={**data.provenance, "confirmed": self.verdict}, source=source)

    def to_json(self) -> dict[str, Any]:
        """All but the verdicts, as JSON values."""
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "verdict"}
        return told | {"interval": list(self.interval), "columns": list(self.columns)}

    def __rich__(self) -> rich.console.Group:
        return rich.console.Group(rich_tables(tables(self.to_json())), escape(summary(self.to_json())))


def _simulator(step: Step) -> dict[str, Any]:
    """What replays rows by `step`: its name, and the versions of packages that its answers may depend on."""
    owner, found = getattr(step, "__self__", step), versions()
    names = (getattr(owner, name, None) for name in ("name", "environment", "world", "__qualname__"))
    name = next((str(one) for one in names if one), type(owner).__name__)
    if spec := gymnasium.registry.get(name.rpartition(":")[2]):
        module = re.split(r"[.:]", getattr(spec.entry_point, "__module__", str(spec.entry_point)))[0]
        found |= {package: version(package) for package in packages_distributions().get(module, ())}
    return {"name": name, "versions": found}


def summary(found: Mapping[str, Any]) -> str:
    """The result of an audit, given as JSON values, in one sentence."""
    limits = ", ".join(f"{factor} {limit:.3g}" for factor, limit in found["tolerance"].items())
    share = f"{found['confirmed']:.1%} ({_span(found['interval'])})"
    kind = "rows" if list(found["by"]["recipe"]) in (["all rows"], ["recorded"]) else "generated rows"
    told = f"{share} of {found['rows']:,} {kind} are true, within a tolerance of {limits}."
    if both := found.get("true_and_new"):
        told += f" {both['share']:.1%} ({_span(both['interval'])}) are true and new."
    if covered := found.get("coverage"):
        told += f" True rows cover {covered['all']:.1%} of the target, recorded ones {covered['recorded']:.1%}."
    return told


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The tables of an audit, given as JSON values."""
    told = []
    for name, cells in found["by"].items():
        label, count = name.replace("_", " "), "episodes" if name == "episode" else "rows"
        recorded_too = any(cell.get("recorded") for cell in cells.values())
        more = [key for key in ("new", "true_and_new") if any(key in cell for cell in cells.values())]
        rows = []
        for group, cell in cells.items():
            share = f"{cell['share']:.1%} ({_span(cell['interval'])})" if cell["rows"] else "–"
            recorded = [f"{cell['recorded']['share']:.1%}" if cell.get("recorded") else "–"]
            rows.append([str(group), f"{cell[count]:,}", share, *(recorded if recorded_too else [])])
            rows[-1] += [f"{cell[key]:.1%}" for key in more]
        heads = [label, count, "confirmed (95% CI)", *(["recorded"] if recorded_too else [])]
        heads += [key.replace("_", " ") for key in more]
        told.append(Table(f"Confirmed, by {label}", heads, rows))
    if found["predictors"]:
        rows = [
            [PREDICTORS.get(name, name), "all rows have the same verdict"]
            if cell["auroc"] is None
            else [PREDICTORS.get(name, name), "{:.3f} ({:.3f} to {:.3f})".format(cell["auroc"], *cell["interval"])]
            for name, cell in found["predictors"].items()
        ]
        caption = "How well true rows can be predicted without a simulator"
        told.append(Table(caption, ["true rows have the", "AUROC (95% CI)"], rows))
    return told


def _span(interval: Sequence[float]) -> str:
    return "{:.1f} to {:.1f}".format(*(100 * end for end in interval))


# --- rows and columns that are compared


def audited_rows(data: Transitions) -> Tensor:
    """The generated rows, bool (N,); all rows if none is known to be."""
    made = generated(data)
    return made if bool(made.any()) else ~made


def _chosen(data: Transitions, new: Tensor, rows: int | None, episodes: int | None, stream: Stream) -> Tensor:
    """The rows to audit, ascending."""
    if episodes is None:
        if rows is None or rows >= len(data):
            return torch.arange(len(data), device=data.device)
        check_counts(rows=rows)
        return stream.permutation(len(data))[:rows].sort().values.to(data.device)
    if rows is not None:
        raise InputError("rows and episodes both limit the audit; give one of them.")
    check_counts(episodes=episodes)
    if data.episode is None or not bool((data.episode[new] >= 0).any()):
        raise InputError(
            "no generated row belongs to an episode: audit rows instead, or make episodes with augment_episodes."
        )
    numbers = [data.episode[kind & (data.episode >= 0)].unique() for kind in (new, ~new)]
    drawn = [own[stream.permutation(len(own))[:episodes].to(own.device)] for own in numbers]
    return torch.isin(data.episode, torch.cat(drawn)).nonzero()[:, 0]


class Limits(NamedTuple):
    """The largest errors that count as true.

    compared   factor -> the columns of it that are compared
    tolerance  factor -> its largest distance
    weight     (S,), of each column in the distance. Columns that rest in the data have a large one: a next state that
               moves them is wrong, however far others move
    spread     (S,), the standard deviation of each column's recorded steps; of a resting column, its own tolerance
    moves      bool (S,), whether a column ever changes within a step
    """

    compared: dict[str, list[int]]
    tolerance: dict[str, float]
    weight: Tensor
    spread: Tensor
    moves: Tensor

    @property
    def columns(self) -> list[int]:
        return [column for factor in self.tolerance for column in self.compared[factor]]

    @staticmethod
    def of(data: Transitions, graph: LocalGraph, tolerance: Tolerance | None, columns: Columns | None) -> Limits:
        """Those that are given, or else a tenth of the standard deviation of each factor's recorded steps."""
        generated = audited_rows(data)
        recorded = data if bool(generated.all()) else data[~generated]
        change, state = recorded.next_state.double() - recorded.state.double(), recorded.state.double()
        own = RESTING * torch.maximum(state.std(0, correction=0), RESTING * state.abs().amax(0)).clamp(min=1e-6)
        step = change.std(0, correction=0)
        moves = step > 1e-6 * state.abs().amax(0)
        spread, compared = torch.where(moves, step, own), _compared(data, graph, columns)
        if tolerance is not None:
            limits = _given(tolerance, graph, compared)
            return Limits(compared, limits, torch.ones_like(own), spread, moves)
        limits, weight = {}, torch.ones_like(own)
        for factor, columns_of in compared.items():
            moving = [column for column in columns_of if moves[column]]
            resting = [column for column in columns_of if not moves[column]]
            limits[factor] = DEFAULT_TOLERANCE * float(step[moving].norm()) if moving else float(own[resting].norm())
            weight[resting] = limits[factor] / own[resting]
        return Limits(compared, limits, weight, spread, moves)

    def distances(self, one: Tensor, other: Tensor) -> Tensor:
        """How far states (N, S) are apart in each factor, (N, factors)."""
        apart = (one.double() - other.double()) * self.weight
        return torch.stack([apart[:, self.compared[factor]].norm(dim=1) for factor in self.tolerance], 1)

    def within(self, one: Tensor, other: Tensor) -> Tensor:
        """Whether states (N, S) agree in each factor, bool (N, factors)."""
        return self.distances(one, other) <= torch.tensor(list(self.tolerance.values()), device=one.device)


def _compared(data: Transitions, graph: LocalGraph, columns: Columns | None) -> dict[str, list[int]]:
    """The columns that are compared, by factor."""
    names = data.columns[: data.state.shape[1]]
    chosen = set(range(len(names))) if columns is None else set()
    for column in columns or ():
        number = column if isinstance(column, int) else names.index(column) if column in names else -1
        if not 0 <= number < len(names):
            raise unknown_name("state column", column, names)
        chosen.add(number)
    found = {child: [column for column in graph.factors[child] if column in chosen] for child in graph.children}
    return {child: own for child, own in found.items() if own}


def _given(tolerance: Tolerance, graph: LocalGraph, compared: Mapping[str, list[int]]) -> dict[str, float]:
    """The tolerance of every factor that is compared."""
    given = dict(tolerance) if isinstance(tolerance, Mapping) else dict.fromkeys(compared, tolerance)
    for factor, limit in given.items():
        if factor not in graph.children:
            raise unknown_name("state factor", factor, graph.children)
        if factor not in compared:
            raise InputError(f"tolerance names {factor!r}, but columns names none of its columns.")
        if not 0 < limit < float("inf"):
            raise InputError(f"the tolerance of {factor!r} must be a positive distance, got {limit}.")
    if not given:
        raise InputError("no factor is compared: name at least one in tolerance, and one of its columns in columns.")
    return {factor: float(given[factor]) for factor in compared if factor in given}


# --- groups of rows


def _compare(confirmed: Tensor, new: Tensor, group: Tensor | None = None) -> Cell:
    """The share of generated rows that are true, of a group if given, and that of recorded ones if there are any."""
    chosen = torch.ones_like(new) if group is None else group
    recorded = confirmed[chosen & ~new]
    return share_of(confirmed[chosen & new]) | {"recorded": share_of(recorded) if len(recorded) else None}


def _by_recipe(table: Transitions, confirmed: Tensor, new: Tensor | None) -> dict[str, Cell]:
    recipe = table.provenance.get("recipe")
    if recipe is None:
        return {"all rows": share_of(confirmed)}
    found = {}
    for number, name in _recipes(recipe).items():
        own = recipe == number
        found[name] = share_of(confirmed[own])
        if new is not None:
            found[name] |= {
                "new": share_of(new[own])["share"],
                "true_and_new": share_of((confirmed & new)[own])["share"],
            }
    return found


def _recipes(recipe: Tensor) -> dict[int, str]:
    """The numbers that occur in provenance, and their names."""
    names = {RECORDED: "recorded", **{i: name for i, name in enumerate(BUILT_IN, 1)}, OWN: "own"}
    numbers = sorted(set(recipe.tolist()), key=lambda number: (number == OWN, number))
    return {number: names.get(number, str(number)) for number in numbers}


def _by_episode(table: Transitions, confirmed: Tensor, new: Tensor, whole: bool) -> dict[str, dict[str, Cell]]:
    """Rows by tenths of their steps, and if episodes are whole, the share of true episodes by recipe; or nothing."""
    if table.episode is None or table.step is None or not bool((table.episode[new] >= 0).any()):
        return {}
    known = table.episode >= 0
    found = {"step": _by_step(table.step[known], confirmed[known], new[known])}
    if not whole:
        return found
    order = table.step[known].argsort(stable=True)
    order = order[table.episode[known][order].argsort(stable=True)]
    true, episode = confirmed[known][order], table.episode[known][order]
    _, number, steps = torch.unique_consecutive(episode, return_inverse=True, return_counts=True)
    first = steps.cumsum(0) - steps
    place = torch.arange(len(true), device=true.device) - first[number]
    until = steps.scatter_reduce(0, number, torch.where(true, steps[number], place), "amin")  # before the first error
    recipe = table.provenance.get("recipe", torch.full_like(table.step, OWN))[known][order][first]
    kinds = {OWN: "all episodes"} if "recipe" not in table.provenance else _recipes(recipe)
    cells = {}
    for kind, name in kinds.items():
        own = recipe == kind
        share = share_of((until == steps)[own])
        episodes = share.pop("rows")
        cells[name] = share | {
            "rows": int(steps[own].sum()),
            "episodes": episodes,
            "true_steps": float(until[own].double().median()),
        }
    return {"episode": cells, **found}


def _by_local_graph(table: Transitions, graph: LocalGraph, confirmed: Tensor, new: Tensor) -> dict[str, Cell]:
    """The commonest local graphs of generated rows, named by the edges that the sparsest one lacks; then the rest."""
    masks = torch.cat([graph.mask(block) for block in table.rows.split(65_536)])
    kinds, number = torch.unique(masks.flatten(1), dim=0, return_inverse=True)
    counts = torch.bincount(number[new], minlength=len(kinds))
    order = [kind for kind in counts.argsort(descending=True, stable=True).tolist() if counts[kind]]
    sparsest = graph.sparsest.to(masks.device)
    cells = {}
    for kind in order[:MAX_GRAPHS]:
        mask = kinds[kind].view_as(sparsest)
        edges = [("+", mask & ~sparsest), ("-", sparsest & ~mask)]
        names = [
            f"{sign} {graph.parents[p]} -> {graph.children[c]}"
            for sign, own in edges
            for p, c in own.nonzero().tolist()
        ]
        name = ", ".join(names) or "sparsest"
        cells[name] = _compare(confirmed, new, number == kind)
    if len(order) > MAX_GRAPHS:
        rest = torch.isin(number, torch.tensor(order[:MAX_GRAPHS], device=number.device), invert=True)
        cells[f"{len(order) - MAX_GRAPHS} others"] = _compare(confirmed, new, rest)
    return cells


def _by_step(step: Tensor, confirmed: Tensor, new: Tensor) -> dict[str, Cell]:
    """Generated rows by tenths, from early to late steps, fewer where many are equal; recorded ones at these steps."""
    ordered = step[new].sort().values
    starts = ordered[[tenth * len(ordered) // 10 for tenth in range(10)]].unique()
    number = torch.bucketize(step, starts[1:], right=True)
    ends = pairwise([*starts.tolist(), int(ordered[-1])])
    return {f"{low} to {high}": _compare(confirmed, new, number == i) for i, (low, high) in enumerate(ends)}
