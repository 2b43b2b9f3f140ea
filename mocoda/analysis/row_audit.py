"""Audit: how many generated rows are true, by a simulator or any function that knows what follows a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich.console
import rich.table
import torch
from torch import Tensor

from mocoda.analysis.audit_groups import beside, by_decile, by_episode, by_local_graph, by_recipe
from mocoda.analysis.classifier import FEWEST, two_sample
from mocoda.analysis.rates import Cell, area_under_curve, share_of
from mocoda.analysis.replay import Step, replay
from mocoda.augmentation.provenance import RECORDED
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

USUAL = 0.1  # the tolerance unless given: this share of a step's standard deviation
GRAPHS = 12  # local graphs that are told apart, the commonest
CONFIRMED, WRONG, NOT_AUDITED = 1, 0, -1  # verdicts
ODDS_ROWS = 10_000  # rows of each kind that a two-sample classifier is trained on, at most
# What is to tell true rows from others, and which rows it takes for true.
PREDICTORS = {"support": "most support", "disagreement": "least disagreement", "odds": "best odds of being recorded"}
Tolerance = float | Mapping[str, float]


def audit(
    data: Transitions,
    step: Step,
    graph: LocalGraph,
    *,
    tolerance: Tolerance | None = None,
    columns: Sequence[str | int] | None = None,
    rows: int | None = None,
    episodes: int | None = None,
    seed: int | Stream = 0,
    workers: int | None = 0,
    checkpoint: str | Path | None = None,
    progress: Progress = silent,
) -> Audit:
    """Asks `step` what truly follows each row, and says how many of the generated rows are true.

    A row is confirmed if every factor's next value is within the tolerance of what `step` says. Recorded rows are
    treated alike: what they lack to 100% is noise, or what a state does not say.

    data        as `augment` makes it, with provenance. Without, all rows count as generated
    step        rows (N, S + A) -> true next states (N, S), numpy or torch. It gets float32 tensors on the data's device
    tolerance   Euclidean distance in the data's units: one number, or one a factor; those that a mapping leaves out
                are not compared. Unless given, a tenth of the standard deviation of the factor's recorded steps
    columns     columns of the state that are compared, by name or number; all unless given
    rows        audit only so many rows, drawn at random from the whole table
    episodes    audit only the rows of so many generated episodes, and of as many recorded ones, drawn at random. Each
                row is replayed from its own state
    workers     processes that call `step`, which they must be able to import. None: one per core; 0: this process
    checkpoint  file that keeps what is finished, for a second call to go on from; it is not removed
    """
    graph.check_data(data)
    generated = _generated(data)
    limits = _limits(data, graph, tolerance, columns)
    stream = as_stream(seed, "audit", device="cpu")
    chosen = _chosen(data, generated, rows, episodes, stream)
    if not bool(generated[chosen].any()):
        raise InputError(
            f"none of the {len(chosen):,} rows drawn is a generated one; {int(generated.sum()):,} of {len(data):,} "
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
    found = judge(
        table, truth, graph, tolerance=limits, columns=columns, seed=stream, whole=rows is None or rows >= len(data)
    )
    verdict = torch.full((len(data),), NOT_AUDITED, device=data.device)
    verdict[chosen] = found.verdict
    return replace(found, verdict=verdict)


def judge(
    data: Transitions,
    truth: Tensor,
    graph: LocalGraph,
    *,
    tolerance: Tolerance | None = None,
    columns: Sequence[str | int] | None = None,
    seed: int | Stream = 0,
    whole: bool = True,
) -> Audit:
    """The audit of a table whose true next states (N, S) are known, as from `replay`; options as for `audit`.

    whole  whether episodes have all their rows, so that it can be said of whole ones how many are true
    """
    compared, limits = _compared(data, graph, columns), _limits(data, graph, tolerance, columns)
    off = torch.stack([_distance(data.next_state, truth, compared[factor]) for factor in limits], 1)
    within = off <= torch.tensor(list(limits.values()), dtype=off.dtype, device=off.device)
    confirmed, new = within.all(1), _generated(data)
    known = {name: data.provenance[name] for name in ("support", "disagreement") if name in data.provenance}
    scores = {name: -values if name == "disagreement" else values for name, values in known.items()}
    if min(int(new.sum()), int((~new).sum())) >= FEWEST:
        scores["odds"] = _recorded_odds(data, graph, new, seed)
    total = share_of(confirmed[new])
    return Audit(
        confirmed=total["share"],
        interval=total["interval"],
        rows=total["rows"],
        by={
            "recipe": by_recipe(data, confirmed),
            "local_graph": by_local_graph(data, graph, confirmed, new),
            **(by_episode(data, confirmed, new, whole) if _has_episodes(data, new) else {}),
            "factor": {
                factor: beside(within[:, i], new) | {"median_error": float(off[new, i].median())}
                for i, factor in enumerate(limits)
            },
            # No model predicted recorded rows, so nothing disagreed about them.
            **{name: by_decile(values, confirmed, new, recorded=name == "support") for name, values in known.items()},
        },
        predictors={name: area_under_curve(score[new], confirmed[new]) for name, score in scores.items()},
        tolerance=limits,
        columns=tuple(data.columns[column] for factor in limits for column in compared[factor]),
        verdict=confirmed.long(),
    )


@dataclass(frozen=True, eq=False)
class Audit:
    """How many of the generated rows are true; prints as tables.

    confirmed   the share of the generated rows that is, from 0 to 1; of all rows if none is known to be generated
    interval    its 95% confidence interval (Wilson)
    rows        generated rows that were audited
    by          shares with their intervals and rows: by recipe, local_graph, factor, and deciles of support and of
                disagreement, as `by["recipe"]["mocoda"]["share"]`. Recorded rows are `by["recipe"]["recorded"]`, and
                under "recorded" in each of the others. If generated rows are of episodes, also deciles of their step,
                and by episode and recipe the share of `episodes` whose steps are all true, with the median number of
                steps before the first that is not, `true_steps`
    predictors  how well support, disagreement and odds tell true rows from others, for people without a simulator:
                AUROC (0.5: not at all) with its 95% interval. Odds are those of `two_sample` that a row is recorded,
                the product over parent sets, by classifiers trained on the recorded and generated rows
    tolerance   by factor
    columns     of the state that were compared
    verdict     (N,) int64, of every row of the data: 1 confirmed, 0 not, -1 not audited
    """

    confirmed: float
    interval: tuple[float, float]
    rows: int
    by: dict[str, dict[str, Cell]]
    predictors: dict[str, Cell]
    tolerance: dict[str, float]
    columns: tuple[str, ...]
    verdict: Tensor

    def keep(self, data: Transitions) -> Transitions:
        """The data with the verdict as a column of provenance, so that data[data.provenance["confirmed"] == 1] is true.

        data  what was audited
        """
        if len(data) != len(self.verdict):
            raise InputError(f"the audit was of {len(self.verdict):,} rows, and this data has {len(data):,}.")
        return replace(data, provenance={**data.provenance, "confirmed": self.verdict})

    def to_json(self) -> dict[str, Any]:
        """All but the verdicts, as JSON values."""
        return {
            "confirmed": self.confirmed,
            "interval": list(self.interval),
            "rows": self.rows,
            "by": self.by,
            "predictors": self.predictors,
            "tolerance": self.tolerance,
            "columns": list(self.columns),
        }

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        for name, cells in self.by.items():
            yield _table(name.replace("_", " "), cells)
        if self.predictors:
            yield _predictors(self.predictors)
        low, high = self.interval
        yield (
            f"{100 * self.confirmed:.1f}% ({100 * low:.1f} to {100 * high:.1f}) of {self.rows:,} rows are true within "
            f"the tolerance: {', '.join(f'{factor} {limit:.3g}' for factor, limit in self.tolerance.items())}."
        )


def _table(name: str, cells: Mapping[str, Cell]) -> rich.table.Table:
    table = rich.table.Table(title=f"Confirmed, by {name}", title_justify="left")
    table.add_column(name)
    recorded_too = any(cell.get("recorded") for cell in cells.values())
    count = "episodes" if name == "episode" else "rows"
    for head in (count, "confirmed", "95% CI", *(["recorded"] if recorded_too else [])):
        table.add_column(head, justify="right")
    for group, cell in cells.items():
        texts = [f"{cell[count]:,}", "-", "-"]
        if cell["rows"]:
            low, high = cell["interval"]
            texts[1:] = [f"{100 * cell['share']:.1f}%", f"{100 * low:.1f} to {100 * high:.1f}"]
        recorded = cell.get("recorded")
        if recorded_too:
            texts.append(f"{100 * recorded['share']:.1f}%" if recorded else "-")
        table.add_row(group, *texts)
    return table


def _predictors(cells: Mapping[str, Cell]) -> rich.table.Table:
    table = rich.table.Table(title="How well true rows are known without a simulator", title_justify="left")
    table.add_column("the true rows have the")
    for head in ("AUROC", "95% CI"):
        table.add_column(head, justify="right")
    for name, cell in cells.items():
        if cell["auroc"] is None:
            table.add_row(PREDICTORS[name], "-", "all rows have one verdict")
        else:
            low, high = cell["interval"]
            table.add_row(PREDICTORS[name], f"{cell['auroc']:.3f}", f"{low:.3f} to {high:.3f}")
    return table


# --- what is compared


def _generated(data: Transitions) -> Tensor:
    """Which rows a recipe made, bool (N,); all of them if none is known to be."""
    recipe = data.provenance.get("recipe")
    made = torch.zeros(len(data), dtype=torch.bool, device=data.device) if recipe is None else recipe != RECORDED
    return made if bool(made.any()) else ~made


def _has_episodes(data: Transitions, new: Tensor) -> bool:
    return data.episode is not None and bool((data.episode[new] >= 0).any())


def _chosen(data: Transitions, new: Tensor, rows: int | None, episodes: int | None, stream: Stream) -> Tensor:
    """The rows to audit, ascending."""
    if rows is not None and rows < 1:
        raise InputError(f"rows must be at least 1, the number of rows to audit, got {rows}.")
    if episodes is None:
        if rows is None or rows >= len(data):
            return torch.arange(len(data), device=data.device)
        return stream.permutation(len(data))[:rows].sort().values.to(data.device)
    if rows is not None:
        raise InputError("rows and episodes both say how much to audit; give one of them.")
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, the number of episodes to audit, got {episodes}.")
    if not _has_episodes(data, new):
        raise InputError(
            "no generated row is of an episode: audit rows instead, or make episodes with augment_episodes."
        )
    assert data.episode is not None
    numbers = [data.episode[kind & (data.episode >= 0)].unique() for kind in (new, ~new)]
    drawn = [own[stream.permutation(len(own))[:episodes].to(own.device)] for own in numbers]
    return torch.isin(data.episode, torch.cat(drawn)).nonzero()[:, 0]


def _compared(data: Transitions, graph: LocalGraph, columns: Sequence[str | int] | None) -> dict[str, list[int]]:
    """By factor, the columns that count."""
    names = data.columns[: data.state.shape[1]]
    if columns is None:
        return {child: list(graph.factors[child]) for child in graph.children}
    chosen = set()
    for column in columns:
        number = column if isinstance(column, int) else names.index(column) if column in names else -1
        if not 0 <= number < len(names):
            raise unknown_name("state column", column, names)
        chosen.add(number)
    found = {child: [column for column in graph.factors[child] if column in chosen] for child in graph.children}
    return {child: own for child, own in found.items() if own}


def usual_tolerance(
    data: Transitions, graph: LocalGraph, columns: Sequence[str | int] | None = None
) -> dict[str, float]:
    """By factor, a tenth of the standard deviation of its recorded steps, over the columns that are compared."""
    generated = _generated(data)
    recorded = data if bool(generated.all()) else data[~generated]
    change = (recorded.next_state.double() - recorded.state.double()).var(0, correction=0)
    found = {factor: USUAL * float(change[own].sum().sqrt()) for factor, own in _compared(data, graph, columns).items()}
    for factor, limit in found.items():
        if not limit > 0:
            raise InputError(f"{factor!r} never changes in the data, so no tolerance follows: pass tolerance.")
    return found


def _limits(
    data: Transitions, graph: LocalGraph, tolerance: Tolerance | None, columns: Sequence[str | int] | None
) -> dict[str, float]:
    """The tolerance of every factor that is compared."""
    compared = _compared(data, graph, columns)
    if tolerance is None:
        return usual_tolerance(data, graph, columns)
    if isinstance(tolerance, Mapping):
        for factor in tolerance:
            if factor not in graph.children:
                raise unknown_name("state factor", factor, graph.children)
            if factor not in compared:
                raise InputError(f"tolerance names {factor!r}, of which columns names no column.")
        given = {factor: tolerance[factor] for factor in compared if factor in tolerance}
    else:
        given = dict.fromkeys(compared, tolerance)
    for factor, limit in given.items():
        if not 0 < limit < float("inf"):
            raise InputError(f"the tolerance of {factor!r} must be a positive distance, got {limit}.")
    if not given:
        raise InputError("no factor is compared: name at least one in tolerance, and one of its columns in columns.")
    return {factor: float(limit) for factor, limit in given.items()}


def _distance(one: Tensor, other: Tensor, columns: list[int]) -> Tensor:
    distance: Tensor = (one[:, columns].double() - other[:, columns].double()).norm(dim=1)
    return distance


def _recorded_odds(data: Transitions, graph: LocalGraph, new: Tensor, seed: int | Stream) -> Tensor:
    """How much likelier each row is recorded than generated, (N,): log odds, summed over the parent sets."""
    recorded, drawn = (rows[:: -(-len(rows) // ODDS_ROWS)] for rows in (data.rows[~new], data.rows[new]))
    found = two_sample(recorded, drawn, graph, seed=seed)
    return -torch.stack([one.log_odds(data.rows) for one in found.values()]).sum(0)
