"""All random numbers come from here.

A `Stream` is a source of random numbers with a name. Its numbers depend on the seed and the labels alone, so what one
stage or run draws never shifts what another one draws.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from mocoda.engine.errors import InputError

Random = np.random.Generator


class Stream:
    """Random tensors on one device, determined by a seed and labels.

    >>> Stream(0, "noise").normal(2).equal(Stream(0, "noise").normal(2))
    True
    """

    def __init__(self, seed: int, *labels: str | int, device: torch.device | str = "cpu") -> None:
        try:
            self.seed = operator.index(seed)
        except TypeError as error:
            raise InputError(f"a seed must be an integer, got {seed!r}. Pass one such as 0.") from error
        self.labels = tuple(label if isinstance(label, str) else int(label) for label in labels)
        self.device = torch.device(device)
        digest = hashlib.sha256(repr((self.seed, *self.labels)).encode()).digest()
        self._generator = torch.Generator(self.device)
        self._generator.manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def child(self, *labels: str | int) -> Stream:
        """The stream of a part of the work; it shares no state with this one."""
        return Stream(self.seed, *self.labels, *labels, device=self.device)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        numbers = torch.rand(shape, generator=self._generator, device=self.device, dtype=dtype)
        return low + (high - low) * numbers

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device, dtype=dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 up to, not including, `high`."""
        return torch.randint(high, shape, generator=self._generator, device=self.device)

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self._generator, device=self.device)

    def categories(self, weights: Tensor, n: int) -> Tensor:
        """`n` indices into `weights` (K,), each drawn in proportion to its weight."""
        cumulative = weights.to(torch.float64).cumsum(0)
        drawn = self.uniform(n, dtype=torch.float64) * cumulative[-1]
        return torch.searchsorted(cumulative, drawn, right=True).clamp_(max=len(weights) - 1)

    def category_per_row(self, weights: Tensor) -> Tensor:
        """One index per row of `weights` (N, K), drawn in proportion to the row's weights."""
        cumulative = weights.cumsum(1)
        drawn = self.uniform(len(weights), 1, dtype=weights.dtype) * cumulative[:, -1:]
        return (cumulative <= drawn).sum(1).clamp_(max=weights.shape[1] - 1)


class Shapes(Stream):
    """Stands in for a stream where only the shapes of new weights are needed: its tensors hold no numbers."""

    def __init__(self) -> None:
        """A stream without a seed."""

    def child(self, *labels: str | int) -> Shapes:
        return self

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")


def generator(*seed: int) -> Random:
    """numpy's generator with this seed, for simulators, which draw one number at a time."""
    return np.random.default_rng(seed)


@contextmanager
def numpy_seed(random: Random) -> Iterator[None]:
    """Seeds numpy's global generator for foreign code that draws from it; restores its state after the block."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(random.integers(2**31))  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def as_stream(seed: int | Stream, *labels: str | int, device: torch.device | str) -> Stream:
    """The stream named `labels` below a user's seed, or below the stream of the calling stage."""
    if isinstance(seed, Stream):
        return Stream(seed.seed, *seed.labels, *labels, device=device)
    return Stream(seed, *labels, device=device)
