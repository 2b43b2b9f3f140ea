"""Recipes by name and their settings; flattening by rejection; and the kernel density estimate that it uses."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from numpy.typing import NDArray
from parents_world import DATA, TASK, Slope, TrueModel, as_set, entropy
from scipy.stats import ks_2samp, kstest
from sklearn.neighbors import KernelDensity
from torch import Tensor

from experiments.columns import PUBLISHED, column_recipe
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.parents import (
    RECIPES,
    MocodaP,
    MocodaU,
    Parents,
    Recipe,
    fit_parents,
    make_recipe,
)
from mocoda.parents.flattening import FlattenedParents, kernel_density
from mocoda.parents.mocoda import MixtureParents
from mocoda.tasks.navigation import GRAPH, Navigation

Floats = NDArray[np.float64]


def first_column(rows: Tensor) -> Tensor:
    return rows[:, :1]


def fitted(recipe: str, seed: int = 0, **settings: Any) -> Parents:
    settled = column_recipe(recipe, **{"components": 8, **settings})
    return fit_parents(DATA, GRAPH, settled, task=TASK, model=TrueModel(), seed=seed)


# Every recipe


def test_settings_are_json_values() -> None:
    assert make_recipe("mocoda-u", bandwidth=0.1) == MocodaU(bandwidth=0.1) != MocodaU()
    found = MocodaU(bandwidth=0.1, features=first_column).settings
    assert found["bandwidth"] == 0.1 and found["density"] == "matched" and "features" not in found


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mocada", {}),
        ("xyz", {}),
        ("emp", {"horizon": 2}),
        ("dyna", {"horizn": 2}),
        ("dyna", {"horizon": -1}),
        ("mocoda", {"components": 0}),
        ("mocoda", {"density": "machted"}),
        ("mocoda", {"composition": True, "stratified": False}),
        ("mocoda", {"composition": True, "density": "mixture"}),
        ("mocoda-u", {"bandwidth": -1.0}),
        ("mocoda-u", {"density_floor": 0.0}),
        *(("mocoda-p", {"acceptance": share}) for share in (0, -0.1, 1.5, math.nan)),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_fitted(name: str, settings: dict[str, Any]) -> None:
    with refused():
        make_recipe(name, **settings)


@pytest.mark.parametrize("states", [1, 3])
@pytest.mark.parametrize("recipe", RECIPES)
def test_data_with_other_columns_than_the_graph_is_refused(recipe: str, states: int) -> None:
    other = Transitions(DATA.rows[:, :states], DATA.rows[:, 3:], DATA.rows[:, :states])
    with refused():
        fit_parents(other, GRAPH, recipe, task=TASK, model=TrueModel())


@pytest.mark.parametrize(
    "recipe",
    [
        "mocoda-p",
        MocodaP(region=lambda rows: rows[:, 0] > 0),
        *(MocodaU(features=partial(torch.mul, scale), **PUBLISHED) for scale in (100.0, 0.001)),
        MocodaU(region=lambda rows: rows[:, 0] > 2, **PUBLISHED),
        MocodaU(features=lambda rows: rows[:, 0], **PUBLISHED),
    ],
    ids=[
        "no features",
        "no features, a region",
        "dense everywhere",
        "dense nowhere",
        "an impossible region",
        "no columns",
    ],
)
def test_what_cannot_be_flattened_is_refused(recipe: str | Recipe) -> None:
    with refused():
        fit_parents(DATA, GRAPH, recipe)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0.0, 0.99])
def test_features_that_are_not_finite_are_refused(bad: float, where: float) -> None:
    """Otherwise no row is ever kept, and sampling never ends."""
    calls = []

    def features(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        late = where == 0 or len(calls) > 2  # at once, or only when rows are drawn
        return torch.where((rows[:, :1] > where) & late, bad, rows[:, :1])

    with refused():
        fit_parents(DATA, GRAPH, MocodaU(features=features)).sample(100, seed=0)


def test_few_rows_take_few_proposals() -> None:
    proposals = Slope()
    parents = flattened(proposals)
    fitting = sum(map(len, proposals.proposed))
    parents.sample(10, seed=0)
    assert sum(map(len, proposals.proposed)) - fitting <= 2_048


def test_there_are_seven_recipes_and_two_of_them_need_no_model() -> None:
    assert list(RECIPES) == ["emp", "coda", "dyna", "rand", "mocoda", "mocoda-u", "mocoda-p"]
    assert [name for name in RECIPES if not RECIPES[name].needs_model] == ["emp", "coda"]


# mocoda-u


def test_mocoda_u_is_flatter_than_mocoda_and_stays_within_it() -> None:
    plain, flat = fitted("mocoda", components=16), fitted("mocoda-u", components=16)
    rows, flat_rows = plain.sample(20_000, seed=1), flat.sample(5_000, seed=1)
    assert entropy(flat_rows[:, :2]) > entropy(rows[:5_000, :2]) + 0.1
    assert isinstance(plain, MixtureParents)
    assert plain.log_prob(flat_rows).amin() > plain.log_prob(plain.sample(200_000, seed=2)).amin() - 1.0
    # No cell of the unit square that mocoda fills well is empty, and the rarest of them are far more frequent.
    counts, flat_counts = (
        np.histogram2d(r[:, 0].numpy(), r[:, 1].numpy(), bins=6, range=[(0, 1), (0, 1)])[0] / len(r)
        for r in (rows, flat_rows)
    )
    assert flat_counts.min() > 2 * counts.min()


@pytest.mark.parametrize(("kind", "task"), [(MocodaU, TASK), (MocodaP, TASK), (MocodaP, None)])
def test_features_and_region_of_ones_own_are_honoured(kind: type[MocodaU], task: Navigation | None) -> None:
    """Even where the task has others."""

    def region(rows: Tensor) -> Tensor:
        return rows[:, 1] < 0.5

    recipe = kind(components=8, features=first_column, region=region, **PUBLISHED)
    rows = fit_parents(DATA, GRAPH, recipe, task=task).sample(3_000, seed=0)
    plain = fitted("mocoda").sample(10_000, seed=0)
    assert region(rows).all() and not TASK.region(rows).all()
    assert entropy(rows[:, :1]) > entropy(plain[region(plain)][:3_000, :1]) + 0.02
    assert kstest(rows[(rows[:, 0] > 0.1) & (rows[:, 0] < 0.8), 0].numpy(), "uniform", args=(0.1, 0.7)).statistic < 0.05


# Rejection, on proposals whose density is known


def flattened(proposals: Parents, **options: Any) -> FlattenedParents:
    recipe = MocodaU(**{"bandwidth": 0.02, "density_floor": 0.01, "acceptance": 0.1, **options})
    return FlattenedParents.fit(recipe, proposals, first_column, None, Stream(0, "flatten"))


def test_what_is_kept_is_uniform_where_the_proposals_are_not() -> None:
    rows = flattened(Slope()).sample(8_000, seed=0)
    # Below a twentieth even all proposals are too few, and at both ends the kernels reach beyond the support.
    inner = rows[(rows[:, 0] > 0.1) & (rows[:, 0] < 0.95), 0].numpy()
    assert kstest(inner, "uniform", args=(0.1, 0.85)).statistic < 0.03
    assert kstest(rows[:, 1].numpy(), "uniform").pvalue > 0.001  # what is no feature stays as it was


def test_what_is_kept_was_proposed_and_at_most_once() -> None:
    proposals = Slope()
    parents = flattened(proposals)
    fitting = len(proposals.proposed)
    rows = parents.sample(1_000, seed=0)
    proposed = as_set(*torch.cat(proposals.proposed[fitting:]).T)
    kept = as_set(*rows.T)
    assert kept <= proposed and len(kept) == 1_000


@pytest.mark.parametrize("acceptance", [0.05, 0.2])
def test_the_share_of_proposals_kept_is_the_one_asked_for(acceptance: float) -> None:
    parents = flattened(Slope(), acceptance=acceptance)
    fresh = Slope().sample(20_000, seed=Stream(9, "fresh"))
    weights = parents.weights(fresh)
    assert weights.mean().item() == pytest.approx(acceptance, rel=0.15)
    assert weights.clamp(max=1).mean().item() == pytest.approx(acceptance, rel=0.25)


# mocoda on the paper's data


def test_mocoda_crosses_the_square_that_the_data_only_skirts() -> None:
    rows = fitted("mocoda", components=32).sample(10_000, seed=0)
    assert not ((DATA.state[:, 0] < 0.4) & (DATA.state[:, 1] > 0.5)).any()
    assert ((rows[:, 0] < 0.4) & (rows[:, 1] > 0.5)).float().mean() > 0.03
    for columns in ((0, 2), (1, 3)):
        for column in columns:
            assert ks_2samp(rows[:, column].numpy(), DATA.rows[:, column].numpy()).statistic < 0.05
        found, expected = (float(np.corrcoef(r[:, columns].T)[0, 1]) for r in (rows, DATA.rows))
        assert found == pytest.approx(expected, abs=0.04)
    before, after = (np.corrcoef(r.T.numpy()) for r in (DATA.rows, rows))
    for one, other in [(0, 3), (2, 1), (2, 3)]:
        assert abs(before[one, other]) > 0.3 and abs(after[one, other]) < 0.04


# The kernel density estimate


def scikit_learn(points: Floats, at: Floats, bandwidth: float) -> Floats:
    return np.asarray(np.exp(KernelDensity(bandwidth=bandwidth).fit(points).score_samples(at)), np.float64)


def density(points: Floats, at: Floats, bandwidth: float) -> Floats:
    return kernel_density(torch.from_numpy(points), torch.from_numpy(at), bandwidth).numpy().astype(np.float64)


@pytest.mark.parametrize("dims", [1, 2, 3, 5])
@pytest.mark.parametrize("bandwidth", [0.05, 0.3, 2.0])
def test_density_is_that_of_scikit_learn(dims: int, bandwidth: float) -> None:
    rng = np.random.default_rng(dims)
    points, at = rng.uniform(size=(700, dims)), rng.uniform(-0.1, 1.1, size=(300, dims))
    expected = scikit_learn(points, at, bandwidth)
    some = expected > 1e-6 * expected.max()  # further out, scikit-learn's trees are the less precise of the two
    assert some.sum() > 100
    np.testing.assert_allclose(density(points, at, bandwidth)[some], expected[some], rtol=1e-3)


@pytest.mark.parametrize("span", [1.0, 10.0, 100.0, 1_000.0])
def test_precision_does_not_depend_on_how_many_bandwidths_the_points_span(span: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, span, size=(1_000, 2))
    np.testing.assert_allclose(density(points, points, 0.05), scikit_learn(points, points, 0.05), rtol=1e-2)


@pytest.mark.parametrize("distance", [20.0, 1e3, 1e6])
def test_far_from_every_point_there_is_nothing(distance: float) -> None:
    points = np.random.default_rng(0).uniform(size=(50, 2))
    there = density(points, np.array([[distance, 0.0], [-distance, distance]]), 0.05)
    assert (there == 0).all()
