"""A Gaussian kernel density estimate, as one matrix product per block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mocoda.engine.errors import InputError

# Squared distance from the centre, in bandwidths, up to which float32 keeps three digits of the density.
FLOAT32_REACH = 1e4


def kernel_density(points: Tensor, at: Tensor, bandwidth: float) -> Tensor:
    """The mean of Gaussian kernels around `points` (M, D), evaluated `at` (N, D): (N,) float32.

    A kernel more than about 13 bandwidths away contributes nothing.
    """
    if not bandwidth > 0:
        raise InputError(f"bandwidth must be positive, got {bandwidth}.")
    if points.ndim != 2 or at.ndim != 2 or points.shape[1] != at.shape[1] or len(points) == 0:
        raise InputError(
            f"points (M, D) and at (N, D) must share their columns, got {tuple(points.shape)} and {tuple(at.shape)}."
        )
    # -|x - y|² / 2h² = x·y - |x|²/2 - |y|²/2 in units of h, about the points' centre to keep the terms small. The three
    # terms are one product of widened matrices, so a block is a product, an exponential and a sum. The unit makes the
    # base 2, whose exponential is the fastest.
    unit = bandwidth / math.sqrt(math.log2(math.e))
    centre = points.double().mean(0)
    sources = (points.double() - centre) / unit
    targets = (at.double() - centre) / unit
    if torch.cat([sources, targets]).square().sum(1).max() < FLOAT32_REACH:
        sources, targets = sources.float(), targets.float()
    ones = torch.ones_like
    left = torch.cat([targets, ones(targets[:, :1]), -0.5 * targets.square().sum(1, keepdim=True)], 1)
    right = torch.cat([sources, -0.5 * sources.square().sum(1, keepdim=True), ones(sources[:, :1])], 1).T
    entries = 2**19 if at.device.type == "cpu" else 2**28  # a block of results stays in the cache of a core
    rows = max(1, entries // len(points))
    total = torch.cat([(block @ right).exp2_().sum(1) for block in left.split(rows)])
    normaliser = len(points) * (bandwidth * math.sqrt(2 * math.pi)) ** points.shape[1]
    return (total / normaliser).float()
