"""Where recorded rows lie: within ranges, and some columns on a sphere, as quaternions, or cosine and sine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.graph.local_graph import LocalGraph

UNIT = 1e-3  # that a norm may differ from 1
WIDEST = 4  # columns of a unit vector


@dataclass(frozen=True, eq=False)
class Manifold:
    """What bounds recorded rows.

    low, high  (S + A,), the range of each column
    units      columns of a row that together have length 1 in every recorded row
    """

    low: Tensor
    high: Tensor
    units: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(rows: Tensor, graph: LocalGraph) -> Manifold:
        """Of recorded rows (N, S + A). Unit vectors are of up to WIDEST neighbouring columns of one factor."""
        low, high = rows.amin(0), rows.amax(0)
        squares, varies = rows.double().square(), (high > low).tolist()
        units = []
        for columns in graph.factors.values():
            begin = 0
            while begin < len(columns):
                ends = range(begin + 2, min(begin + WIDEST, len(columns)) + 1)
                own = (
                    columns[begin:end]
                    for end in ends
                    if sum(varies[column] for column in columns[begin:end]) > 1
                    and bool(((squares[:, columns[begin:end]].sum(1).sqrt() - 1).abs() < UNIT).all())
                )
                unit = next(own, None)
                if unit is not None:
                    units.append(tuple(unit))
                begin += 1 if unit is None else len(unit)
        return Manifold(low, high, tuple(units))

    def project(self, rows: Tensor) -> Tensor:
        """Rows (N, S + A) with every column in its range and every unit vector of length 1.

        That a column follows from others, as a hand's place from its joint angles, is not known here.
        """
        return self.of_unit_length(rows.clamp(self.low, self.high))

    def of_unit_length(self, rows: Tensor) -> Tensor:
        """Rows (N, S + A) with every unit vector of length 1."""
        rows = rows.clone()
        for unit in self.units:
            columns = list(unit)
            rows[:, columns] = torch.nn.functional.normalize(rows[:, columns], dim=1)
        return rows

    def outside(self, rows: Tensor) -> Tensor:
        """Which columns of rows (N, S + A) are outside of their range, bool (N, S + A); unit vectors never are."""
        slack = 1e-5 * (self.high - self.low)
        outside = (rows < self.low - slack) | (rows > self.high + slack)
        outside[:, [column for unit in self.units for column in unit]] = False
        return outside

    def broken(self, rows: Tensor) -> list[tuple[tuple[int, ...], float]]:
        """Unit vectors, and in which share of the rows (N, S + A) each has another length."""
        lengths = ((unit, rows[:, list(unit)].double().norm(dim=1)) for unit in self.units)
        return [(unit, float(((length - 1).abs() > UNIT).double().mean())) for unit, length in lengths]
