"""Gaussian mixtures: expectation maximisation, densities, marginals, exact conditionals, samples; and a manifold.

EM here is two matrix products. A Gaussian's log density is linear in the features φ(x) = (1, x, x xᵀ), so the E step of
all components is Θ φ, and the M step needs only the sums of responsibility times φ. Both stream over blocks of points
that fit the cache, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mocoda.data.transitions import Array, as_tensor
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

SMALL = 2**21  # points × components × columns²: with less, a CPU makes a round of EM while a GPU still launches it
RIDGE = 1e-6  # added to every variance, in units of the column's own variance
KMEANS_POINTS, KMEANS_ROUNDS = 10_000, 50
UNIT_TOLERANCE = 1e-3  # that a unit vector's length may differ from 1
MAX_UNIT_COLUMNS = 4


def check_components(components: int) -> None:
    """Refuses a number of components that no mixture can have."""
    if components < 1:
        raise InputError(f"components must be at least 1, got {components}.")


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A mixture of K Gaussians over D columns, in float64.

    weights      (K,)
    means        (K, D)
    covariances  (K, D, D)
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor

    @staticmethod
    def fit(
        points: Array,
        components: int = 32,
        *,
        seed: int | Stream = 0,
        tolerance: float = 1e-3,
        max_iterations: int = 100,
    ) -> GaussianMixture:
        """EM from a k-means++ start, until the mean log likelihood gains less than `tolerance`.

        points  (N, D); columns may be constant or repeated; with fewer points than components, each is a component
        """
        points = as_tensor(points)
        if points.ndim != 2 or 0 in points.shape:
            raise InputError(f"points must have shape (N, D) with N and D at least 1, got {tuple(points.shape)}.")
        if not bool(torch.isfinite(points).all()):
            raise InputError("points has NaN or inf; drop or repair those rows.")
        check_components(components)
        home = points.device
        if len(points) * components * points.shape[1] ** 2 < SMALL:
            points = points.cpu()
        points = points.to(torch.float64)
        shift = points.mean(0)
        spread = points.std(0, correction=0)
        # A constant column gets a width far below anything it could be compared with, not zero.
        constant = spread <= 1e-12 * shift.abs().clamp(min=1.0)
        scale = torch.where(constant, 1e-6 * shift.abs().clamp(min=1.0), spread)
        scaled = ((points - shift) / scale).T.contiguous()
        stream = as_stream(seed, "mixture", device=points.device)
        features = _Features(len(scaled), points.device)
        moments = features.moments(*_kmeans(scaled, min(components, scaled.shape[1]), stream))
        weights, means, covariances = features.parameters(moments)
        likelihood = -math.inf
        for _ in range(max_iterations):
            moments, total = features.expect(scaled, weights, means, covariances)
            weights, means, covariances = features.parameters(moments)
            previous, likelihood = likelihood, total / scaled.shape[1]
            if likelihood - previous < tolerance:
                break
        fitted = (weights, means * scale + shift, covariances * torch.outer(scale, scale))
        return GaussianMixture(*(part.to(home) for part in fitted))

    def __repr__(self) -> str:
        return f"GaussianMixture(components={len(self.weights)}, columns={self.means.shape[1]})"

    def log_prob(self, points: Array) -> Tensor:
        """Log density at each point (N, D): (N,), float64."""
        points = self._checked(points)
        return torch.cat([self._joint(block).logsumexp(1) for block in points.split(_block_rows(self.means))])

    def marginal(self, columns: Sequence[int]) -> GaussianMixture:
        """The mixture of these columns alone, in this order."""
        keep = _checked_columns("columns", columns, self.means.shape[1])
        if not keep:
            raise InputError("columns must name at least one column.")
        return GaussianMixture(self.weights, self.means[:, keep], self.covariances[:, keep][:, :, keep])

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        """n points, (n, D) float32."""
        stream = as_stream(seed, "mixture-sample", device=self.means.device)
        component = stream.categories(self.weights, n)
        noise = stream.normal(n, self.means.shape[1])
        factor = torch.linalg.cholesky(self.covariances).float()
        block = _block_rows(self.means)
        spread = [_times(factor, c, e) for c, e in zip(component.split(block), noise.split(block), strict=True)]
        return self.means.float()[component] + torch.cat(spread)

    def complete(self, points: Array, *, known: Sequence[int], seed: int | Stream) -> Tensor:
        """Draws the columns that are not `known`, given those that are, which stay as they are to the bit.

        points  (N, D); what its unknown columns hold does not matter
        known   numbers of the known columns; none: a plain sample
        """
        points = self._checked(points)
        dims = self.means.shape[1]
        k = _checked_columns("known", known, dims)
        u = [column for column in range(dims) if column not in k]
        stream = as_stream(seed, "mixture-complete", device=points.device)
        if not u:
            return points.clone()
        if not k:
            return self.sample(len(points), seed=stream).to(points.dtype)
        marginal = self.marginal(k)
        s_kk, s_uk = marginal.covariances, self.covariances[:, u][:, :, k]
        gain = torch.linalg.solve(s_kk, s_uk.transpose(1, 2)).transpose(1, 2)  # Σ_uk Σ_kk⁻¹
        rest = self.covariances[:, u][:, :, u] - gain @ s_uk.transpose(1, 2)
        factor = _square_root(rest)
        drawn = []
        for block in points[:, k].split(_block_rows(self.means)):
            value = block.to(torch.float64)
            component = stream.category_per_row(marginal._joint(value).softmax(1))
            offset = _times(gain, component, value - self.means[component][:, k])
            noise = stream.normal(len(block), len(u), dtype=torch.float64)
            drawn.append(self.means[component][:, u] + offset + _times(factor, component, noise))
        completed = points.clone()
        completed[:, u] = torch.cat(drawn).to(points.dtype)
        return completed

    def _checked(self, points: Array) -> Tensor:
        points = as_tensor(points)
        if points.ndim != 2 or points.shape[1] != self.means.shape[1]:
            raise InputError(f"points must have shape (N, {self.means.shape[1]}), got {tuple(points.shape)}.")
        return (points if points.is_floating_point() else points.float()).to(self.means.device)

    def _joint(self, points: Tensor) -> Tensor:
        """log (weight · density) of every component: (N, D) -> (N, K)."""
        factor: Tensor = torch.linalg.cholesky(self.covariances)
        centred = points.to(torch.float64) - self.means[:, None]  # (K, N, D)
        white: Tensor = torch.linalg.solve_triangular(factor, centred.transpose(1, 2), upper=False)
        log_det = factor.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = self.weights.log() - log_det - 0.5 * len(self.means[0]) * math.log(2 * math.pi)
        return (constant[:, None] - 0.5 * white.square().sum(1)).T


@dataclass(frozen=True, eq=False)
class Manifold:
    """The ranges and unit vectors that recorded rows keep: quaternions, or cosine and sine.

    low, high  (S + A,), the range of each column
    units      columns of a row that together have length 1 in every recorded row
    """

    low: Tensor
    high: Tensor
    units: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(rows: Tensor, graph: LocalGraph) -> Manifold:
        """Those of recorded rows (N, S + A); unit vectors have up to MAX_UNIT_COLUMNS adjacent columns of a factor."""
        low, high = rows.amin(0), rows.amax(0)
        squares, varies = rows.double().square(), (high > low).tolist()

        def is_unit(columns: tuple[int, ...]) -> bool:
            length = squares[:, columns].sum(1).sqrt()
            return sum(varies[column] for column in columns) > 1 and bool(((length - 1).abs() < UNIT_TOLERANCE).all())

        units: list[tuple[int, ...]] = []
        for columns in graph.factors.values():
            begin = 0
            while begin < len(columns):
                ends = range(begin + 2, min(begin + MAX_UNIT_COLUMNS, len(columns)) + 1)
                found = next((columns[begin:end] for end in ends if is_unit(columns[begin:end])), None)
                units += [] if found is None else [found]
                begin += 1 if found is None else len(found)
        return Manifold(low, high, tuple(units))

    def project(self, rows: Tensor) -> Tensor:
        """Rows (N, S + A) with every column in its range and every unit vector of length 1.

        Other relations between columns, such as of a hand's place to its joint angles, are not kept.
        """
        rows = rows.clamp(self.low, self.high)
        for unit in self.units:
            columns = list(unit)
            rows[:, columns] = torch.nn.functional.normalize(rows[:, columns], dim=1)
        return rows

    def holds(self, rows: Tensor, slack: Tensor | float = 0.0) -> Tensor:
        """Which rows (N, S + A) keep to it, bool (N,): unit vectors have length 1, other columns are in their range.

        slack  (S + A,), by how much columns may miss that
        """
        slack = slack + 1e-5 * (self.high - self.low)
        inside = (rows >= self.low - slack) & (rows <= self.high + slack)
        for unit in map(list, self.units):
            off = (rows[:, unit].double().norm(dim=1) - 1).abs()
            inside[:, unit] = (off <= UNIT_TOLERANCE + slack[unit].norm())[:, None]
        return inside.all(1)


class _Features:
    """φ(x) = (1, x, x_i x_j for i <= j) for points stored as columns, and what EM does with it."""

    def __init__(self, dims: int, device: torch.device) -> None:
        self.dims = dims
        self.i, self.j = torch.triu_indices(dims, dims, device=device)
        self.block = _block_columns(1 + dims + len(self.i), device)

    def of(self, points: Tensor) -> Tensor:
        """(D, N) -> (F, N)."""
        ones = torch.ones_like(points[:1])
        return torch.cat([ones, points, points[self.i] * points[self.j]])

    def moments(self, points: Tensor, responsibilities: Tensor) -> Tensor:
        """Σ_n r_kn φ(x_n): (K, F)."""
        return responsibilities @ self.of(points).T

    def parameters(self, moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The M step: weights, means and covariances from the moments."""
        count = moments[:, 0] + 10 * torch.finfo(torch.float64).eps
        means = moments[:, 1 : 1 + self.dims] / count[:, None]
        second = moments[:, 1 + self.dims :] / count[:, None] - means[:, self.i] * means[:, self.j]
        covariances = torch.zeros(len(count), self.dims, self.dims, dtype=moments.dtype, device=moments.device)
        covariances[:, self.i, self.j] = second
        covariances[:, self.j, self.i] = second
        covariances.diagonal(dim1=1, dim2=2).clamp_(min=0).add_(RIDGE)
        return count / count.sum(), means, covariances

    def expect(self, points: Tensor, weights: Tensor, means: Tensor, covariances: Tensor) -> tuple[Tensor, float]:
        """The E step over all points: their moments (K, F) under the responsibilities, and the log likelihood."""
        factor = torch.linalg.cholesky(covariances)
        precision = torch.cholesky_inverse(factor)
        linear = (precision @ means[:, :, None])[:, :, 0]
        log_det = factor.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = weights.log() - log_det - 0.5 * (means * linear).sum(1) - 0.5 * self.dims * math.log(2 * math.pi)
        quadratic = precision[:, self.i, self.j] * torch.where(self.i == self.j, -0.5, -1.0)
        theta = torch.cat([constant[:, None], linear, quadratic], dim=1)  # (K, F)
        moments = torch.zeros_like(theta)
        likelihood = torch.zeros((), dtype=torch.float64, device=points.device)
        for block in points.split(self.block, dim=1):
            phi = self.of(block)
            joint = theta @ phi
            evidence = joint.logsumexp(0)
            likelihood += evidence.sum()
            moments.addmm_((joint - evidence).exp_(), phi.T)
        return moments, likelihood.item()


def _kmeans(points: Tensor, components: int, stream: Stream) -> tuple[Tensor, Tensor]:
    """Greedy k-means++ and Lloyd's rounds on some of the points (D, N): those (D, M), and one-hot clusters (K, M)."""
    chosen = stream.permutation(points.shape[1])[: max(KMEANS_POINTS, 4 * components)]
    sample = points[:, chosen].T.contiguous()
    centres = sample[:1]
    nearest = (sample - centres).square().sum(1)
    candidates = 2 + int(math.log(components))
    for _ in range(1, components):
        # Where every point is taken already (duplicates), any further centre will do.
        weights = nearest if bool(nearest.sum() > 0) else torch.ones_like(nearest)
        new = sample[stream.categories(weights, candidates)]
        left = torch.minimum(nearest, torch.cdist(new, sample).square())  # (candidates, points)
        best = left.sum(1).argmin()
        centres, nearest = torch.cat([centres, new[best][None]]), left[best]
    labels = torch.cdist(sample, centres).argmin(1)
    for _ in range(KMEANS_ROUNDS):
        member = torch.nn.functional.one_hot(labels, components).to(sample.dtype)
        count = member.sum(0)
        means = (member.T @ sample) / count.clamp(min=1)[:, None]
        centres = torch.where(count[:, None] > 0, means, centres)
        previous, labels = labels, torch.cdist(sample, centres).argmin(1)
        if bool((labels == previous).all()):
            break
    member = torch.nn.functional.one_hot(labels, components).to(sample.dtype)
    return sample.T, member[:, member.any(0)].T


def _times(matrices: Tensor, which: Tensor, vectors: Tensor) -> Tensor:
    """matrices[which[n]] @ vectors[n] for each n: (K, A, B), (N,), (N, B) -> (N, A)."""
    return (matrices[which] * vectors[:, None, :]).sum(2)


def _square_root(matrices: Tensor) -> Tensor:
    """F with F Fᵀ the matrix, for matrices that rounding may have made slightly indefinite."""
    size = matrices.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-300)
    symmetric = 0.5 * (matrices + matrices.transpose(1, 2)) / size[:, None, None]
    values, vectors = torch.linalg.eigh(symmetric)
    widths: Tensor = values.clamp(min=0).sqrt() * size[:, None].sqrt()
    root: Tensor = vectors * widths[:, None, :]
    return root


def _checked_columns(name: str, columns: Sequence[int], dims: int) -> list[int]:
    numbers = [int(column) for column in columns]
    if len(set(numbers)) != len(numbers) or any(not 0 <= number < dims for number in numbers):
        raise InputError(f"{name} must be different columns from 0 to {dims - 1}, got {numbers}.")
    return numbers


def _block_columns(features: int, device: torch.device) -> int:
    """Points a block: their features fill the cache of a CPU core, or keep a GPU busy."""
    budget = 2**21 if device.type == "cpu" else 2**30
    return max(256, budget // (8 * features))


def _block_rows(means: Tensor) -> int:
    """Points a block where K × D numbers are made of each."""
    return _block_columns(means.numel(), means.device)
