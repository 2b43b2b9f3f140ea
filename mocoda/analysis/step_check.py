"""Checks a simulator before it judges generated rows: does it reproduce recorded ones, and if not, why?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.analysis.replay import Step, replay
from mocoda.analysis.row_audit import DEFAULT_TOLERANCE, Columns, Limits, Tolerance
from mocoda.augmentation.support import RECORDED
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.printed import Printed, percent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

ENOUGH = 0.9  # share of recorded rows that a good simulator confirms
EXPLAINS = 0.3  # share of the rows by which an explanation must do better
MAX_SUBSTEPS = 10
STRAIGHT, LONGER = 0.95, 0.1  # correlation of simulated with recorded changes; share by which their lengths differ


@dataclass(frozen=True)
class StepCheck(Printed):
    """How well a simulator reproduces recorded rows; prints as sentences.

    confirmed  share of the rows whose next state is within the tolerance
    rows       recorded rows that were replayed
    off        columns that are often off -> the share of the rows, and the median error there, as a multiple of the
               standard deviation of the column's steps
    causes     what probably is wrong; empty if enough rows are confirmed
    """

    confirmed: float
    rows: int
    off: Mapping[str, tuple[float, float]]
    causes: tuple[str, ...]

    def __str__(self) -> str:
        said = f"The simulator confirms {percent(self.confirmed)} of {self.rows} recorded rows."
        if self.causes:
            worst = sorted(self.off.items(), key=lambda one: -one[1][0])[:5]
            columns = (f"{name} in {percent(share)} of the rows, by {size:.2g} steps" for name, (share, size) in worst)
            said += f" Off are {'; '.join(columns)}."
        return " ".join([said, *self.causes])


def check_step(
    data: Transitions,
    step: Step,
    graph: LocalGraph,
    *,
    tolerance: Tolerance | None = None,
    columns: Columns | None = None,
    rows: int = 200,
    seed: int | Stream = 0,
) -> StepCheck:
    """Replays recorded rows, and says which columns are off, by how much, and what that usually means.

    A simulator that does not confirm recorded rows cannot judge others, so call this before `audit`, which takes the
    same options.

    rows  recorded rows to replay, drawn at random; data without any is taken as recorded
    """
    graph.check_data(data)
    recipe = data.provenance.get("recipe", torch.zeros(len(data)))
    known = (recipe.cpu() == RECORDED).nonzero()[:, 0]
    if len(known) < 3:
        raise InputError(f"check_step needs at least 3 recorded rows, got {len(known)}.")
    recorded = data[known.to(data.device)]
    limits = Limits.of(recorded, graph, tolerance, columns)
    # Rows with a row before and after them, of the same episode where episodes are known.
    episode = torch.zeros(len(recorded)) if recorded.episode is None else recorded.episode.cpu()
    inner = 1 + (episode[2:] == episode[:-2]).nonzero()[:, 0]
    inner = inner if len(inner) else torch.arange(1, len(recorded) - 1)
    chosen = inner[as_stream(seed, "step check", device="cpu").permutation(len(inner))[:rows]].to(data.device)
    case = _Case(recorded, chosen, known[chosen.cpu()], step, limits)
    good = case.agreement(case.truth, case.next_state)
    own = limits.columns
    error = (case.truth - case.next_state)[:, own].double().abs() / limits.spread[own]
    wrong = error > DEFAULT_TOLERANCE
    off = {
        recorded.columns[column]: (float(wrong[:, i].double().mean()), float(error[wrong[:, i], i].median()))
        for i, column in enumerate(own)
        if bool(wrong[:, i].any())
    }
    return StepCheck(good, len(chosen), off, () if good >= ENOUGH else case.causes(good + EXPLAINS))


class _Case:
    """Recorded rows with those before and after them, and what the simulator makes of them."""

    def __init__(self, data: Transitions, rows: Tensor, numbers: Tensor, step: Step, limits: Limits) -> None:
        self.data, self.rows, self.numbers, self._step, self.limits = data, rows, numbers, step, limits
        self.state, self.next_state = data.state[rows], data.next_state[rows]
        self.truth = self.step(self.state)

    def step(self, state: Tensor, later: int = 0) -> Tensor:
        """What follows states (n, S) with the actions of the rows, or of rows some places later."""
        action = self.data.action[self.rows + later]
        return replay(torch.cat([state, action], 1), self._step, state.shape[1], numbers=self.numbers)

    def agreement(self, one: Tensor, other: Tensor) -> float:
        """The share of the rows in which states (n, S) agree."""
        return float(self.limits.within(one, other).all(1).double().mean())

    def causes(self, least: float) -> tuple[str, ...]:
        """The first explanation with which at least this share of the rows agrees, or else the usual one."""
        again = self.agreement(self.step(self.state), self.truth)
        if again < ENOUGH:
            return (f"The simulator is random: two replays agree in {percent(again)} of the rows.",)
        usual = (
            "Usually the state then lacks something that the simulator needs: velocities, the memory or the target of "
            "a controller, or what else its reset changes."
        )
        return (next((said for said, share in self._explanations() if share >= least), usual),)

    def _explanations(self) -> Iterator[tuple[str, float]]:
        """Sentences, and the share of the rows that agree if each of them is true."""
        said = "step returns the state that it is given: is the simulator put in the state, and then stepped?"
        yield said, self.agreement(self.truth, self.state) - self.agreement(self.state, self.next_state)
        said = "step agrees with the state of the following row: recorded next states are one step late."
        yield said, self.agreement(self.truth, self.data.state[self.rows + 1])
        for later, row in ((-1, "before"), (1, "after")):
            said = f"With the action of the row {row}, rows are confirmed: actions are recorded one step off."
            yield said, self.agreement(self.step(self.state, later), self.next_state)
        state = self.truth
        for count in range(2, MAX_SUBSTEPS + 1):
            state = self.step(state)
            said = f"{count} calls of step make one recorded step: the number of substeps (frame skip) differs."
            yield said, self.agreement(state, self.next_state)
        error = self.next_state - self.truth
        said = "Errors are the same in most rows: another origin, or something that the simulator's reset changes."
        yield said, self.agreement(self.truth + error.median(0).values, self.next_state)
        moves = [column for column in self.limits.columns if self.limits.moves[column]]
        scale = self.limits.spread[moves]
        ours, theirs = (((x - self.state)[:, moves] / scale).flatten() for x in (self.truth, self.next_state))
        straight = float((ours * theirs).sum() / (ours.norm() * theirs.norm()).clamp(min=1e-30))
        ratio = float(ours.norm() / theirs.norm().clamp(min=1e-30))
        said = f"A simulated step is {ratio:.2g} times as long as a recorded one: another time step, or other units."
        yield said, float(straight > STRAIGHT and abs(ratio - 1) > LONGER)
        # Whether half of the errors follow from how the state moved before, by a regression on the other half.
        moved, off = ((x / self.limits.spread)[:, moves] for x in (self.state - self.data.state[self.rows - 1], error))
        half = len(off) // 2
        if half > 2 * len(moves):
            fitted = torch.linalg.lstsq(moved[:half], off[:half], driver="gelsd").solution
            left = (off[half:] - moved[half:] @ fitted).square().sum() / off[half:].square().sum().clamp(min=1e-30)
            yield "Errors go along with how the state moved before: the state lacks velocities.", float(left < 0.5)
