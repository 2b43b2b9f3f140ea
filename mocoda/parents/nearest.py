"""The nearest of a random part of the recorded rows, as blocks of matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mocoda.engine.randomness import Stream
from mocoda.engine.threads import in_threads

# Candidates are a tenth of the recorded rows: enough to be near, and few of them are the neighbours in time of the row
# that a match is sought for, which have nearly the same values in all columns: with them nothing new would be made.
# They are one of every `stride` consecutive rows, so that an episode's rows are as spread as can be.
STRIDE = 10
FEWEST = 100  # candidates: small data looks at more than a tenth, and at all rows if it must
MOST = {"cpu": 5_000, "cuda": 100_000}  # by device: a tenth of many rows would take long
GROUP = 32  # candidates that are compared as one before the best of them is found
TIE = 1e-4  # squared distance (of 1: a standard deviation of the rest) within which matches are chosen among at random


@dataclass(frozen=True, eq=False)
class Nearest:
    """Points to search, with half their squared length as a last column.

    points  (N, D + 1) float32
    """

    points: Tensor

    @staticmethod
    def among(points: Tensor) -> Nearest:
        """A search among points (N, D)."""
        return Nearest(torch.cat([points, -0.5 * points.square().sum(1, keepdim=True)], 1))

    def find(self, queries: Tensor, never: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        """The row nearest to each query (Q, D), (Q,), and its distance; a fresh part of the rows for every block.

        never  (Q, K), rows that are not to be found
        """
        rows = len(self.points)
        on_cpu = queries.device.type == "cpu"
        stride = max(min(STRIDE, rows // FEWEST), -(-rows // MOST["cpu" if on_cpu else "cuda"]), 1)
        block = 1_024 if on_cpu else max(1, 2**28 // (rows // stride))
        pairs = zip(queries.split(block), never.split(block), strict=True)
        jobs = [
            partial(self._find_block, own, avoid, stride, stream.child("block", number) if on_cpu else stream)
            for number, (own, avoid) in enumerate(pairs)
            if len(own)
        ]
        found = in_threads(jobs) if on_cpu else [job() for job in jobs]
        row = torch.cat([row for row, _ in found]) if found else never.new_zeros(0)
        distance = torch.cat([distance for _, distance in found]) if found else queries.new_zeros(0)
        return row, distance

    def _find_block(self, queries: Tensor, never: Tensor, stride: int, stream: Stream) -> tuple[Tensor, Tensor]:
        rows, count, device = len(self.points), len(queries), queries.device
        size = max(1, min(GROUP, rows // stride // (4 * GROUP)))
        groups = rows // stride // size
        # Candidate c is one of the rows c * stride to (c + 1) * stride - 1, counted from a random first row. It is
        # member c // groups of group c % groups, so that a group has rows of all times.
        numbers = torch.arange(groups * size, device=device)
        first = stream.integers(rows, 1)
        row = (numbers * stride + stream.integers(stride, groups * size) + first) % rows
        row = row.view(size, groups).T.reshape(-1)
        points = self.points[row]
        asked = torch.cat([queries, torch.ones_like(queries[:, :1])], 1)
        avoided = ((never - first) % rows) // stride
        avoided = (avoided % groups * size + avoided // groups).clamp(max=groups * size - 1)  # (Q, K) places
        is_avoided = row[avoided] == never
        best = torch.empty(groups, count, device=device)
        part = max(1, (2**18 if device.type == "cpu" else 2**28) // (size * count))  # scores stay in the cache
        column = torch.arange(count, device=device)
        for start in range(0, groups, part):
            # -|q - c|² / 2 = q·c - |c|² / 2 - |q|² / 2, of which the last is the same for all candidates.
            score = points[start * size : (start + part) * size] @ asked.T
            for places, is_it in zip((avoided - start * size).T, is_avoided.T, strict=True):
                here, place = is_it & (places >= 0) & (places < len(score)), places.clamp(0, len(score) - 1)
                score[place, column] = torch.where(here, -torch.inf, score[place, column])
            best[start : start + part] = score.view(-1, size, count).amax(1)
        group = best.add_(stream.uniform(groups, count), alpha=0.5 * TIE).argmax(0)
        members = group[:, None] * size + torch.arange(size, device=device)  # (Q, size)
        squared = (points[members, :-1] - queries[:, None]).square().sum(2)
        squared = squared.masked_fill((row[members][:, :, None] == never[:, None]).any(2), torch.inf)
        member = (squared + TIE * stream.uniform(count, size)).argmin(1, keepdim=True)
        return row[members.gather(1, member)][:, 0], squared.gather(1, member)[:, 0].sqrt()
