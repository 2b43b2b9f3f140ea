from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import h5py
import holding_world
import numpy as np
import pytest
import torch
from approved import refused
from test_augment import Box, Truth
from torch import Tensor
from transition_tables import assert_identical, table

import mocoda
from experiments.columns import PUBLISHED, column_recipe
from mocoda import DynamicsConfig, InputError, Transitions, augment, concatenate, fit_dynamics, fit_parents
from mocoda.augmentation.generation import Augmentation
from mocoda.augmentation.support import disagreement, fit_support, step_scale
from mocoda.engine.randomness import Stream
from mocoda.parents import BUILT_IN, Mocoda
from mocoda.parents.groups import neighbourhood
from mocoda.tasks.navigation import Navigation

TASK = Navigation()
DONORS = [f"donor_{name}" for name in TASK.graph.parents]
NAMES = {"recipe", "predicted", "disagreement", "neighbourhood", "support", *DONORS}


# What augment notes


DATA = TASK.collect(600, seed=0)
MODEL = fit_dynamics(DATA, TASK.graph, config=DynamicsConfig(members=3, hidden=(16,), features=8, epochs=2))


def noted(rows: int = 5, **extra: Any) -> Transitions:
    return table(rows, provenance={"recipe": list(range(rows)), "support": np.linspace(0, 1, rows)}, **extra)


def test_rows_take_their_provenance_along() -> None:
    made = noted()
    assert made[1:3].provenance["recipe"].tolist() == [1, 2]
    assert made[torch.tensor([4, 0])].provenance["support"].tolist() == [1.0, 0.0]
    assert made.to("cpu").provenance["recipe"].equal(made.provenance["recipe"])
    assert concatenate([made, made[2:]]).provenance["recipe"].tolist() == [0, 1, 2, 3, 4, 2, 3, 4]
    copied = deepcopy(made)  # as other processes get it
    assert_identical(copied, made)
    assert copied.provenance["support"].equal(made.provenance["support"])


def test_files_keep_provenance_in_a_group_of_its_own(tmp_path: Path) -> None:
    made = noted()
    concatenate([made, made[:2]]).save(tmp_path / "a.hdf5")
    back = Transitions.load(tmp_path / "a.hdf5")
    assert back.provenance["recipe"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert back.provenance["support"].equal(torch.cat([made.provenance["support"], made.provenance["support"][:2]]))
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert set(file["provenance"]) == {"recipe", "support"}
    some = Transitions.load(tmp_path / "a.hdf5")[1:3]
    assert_identical(some, made[1:3])
    assert some.provenance["recipe"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "given", [{"a/b": [0] * 5}, {"recipe": [0] * 4}, {"support": [0.0, 1.0, float("nan"), 0.0, 0.0]}]
)
def test_provenance_that_is_none_is_refused(given: Any) -> None:
    with refused():
        table(provenance=given)
    with refused():
        concatenate([noted(), table()])


def made(recipe: str, rows: int = 150, **options: Any) -> Transitions:
    settled = column_recipe(recipe, components=4, bandwidth=0.1)
    parents = fit_parents(DATA, TASK.graph, settled, seed=0, task=TASK, model=MODEL)
    return augment(DATA, parents, MODEL, rows=rows, task=TASK, **options)


def with_source_of(rows: Transitions, other: Transitions) -> Transitions:
    """The rows with another table's source."""
    return concatenate([rows], other.source)


@pytest.mark.parametrize("recipe", BUILT_IN)
def test_rows_are_the_same_with_and_without_provenance(recipe: str) -> None:
    noted, bare = (made(recipe, provenance=wanted) for wanted in (True, False))
    assert_identical(noted, with_source_of(bare, noted))
    assert set(noted.provenance) == NAMES and not bare.provenance
    numbers = noted.provenance["recipe"]
    assert numbers[:600].unique().tolist() == [0]
    assert numbers[600:].unique().tolist() == [1 + BUILT_IN.index(recipe)]
    asked = recipe not in ("emp", "coda")
    assert bool((noted.provenance["disagreement"][600:] > 0).all()) == asked


@pytest.mark.parametrize("recipe", ["emp", "coda", "mocoda-matched", "mocoda-local", "mocoda-u-matched"])
def test_every_factor_has_the_values_of_its_donor(recipe: str) -> None:
    noted = made(recipe)
    for name, donor in zip(TASK.graph.parents, DONORS, strict=True):
        index, columns = noted.provenance[donor], list(TASK.graph.factors[name])
        assert index.dtype == torch.int32 and index[:600].tolist() == list(range(600))
        assert noted.rows[:, columns].equal(DATA.rows[index][:, columns])
    assert (recipe == "emp") == all(noted.provenance[name].equal(noted.provenance[DONORS[0]]) for name in DONORS)


@pytest.mark.parametrize("recipe", ["mocoda", "mocoda-u", "dyna", "rand"])
def test_what_is_not_copied_has_no_donor(recipe: str) -> None:
    assert all((made(recipe).provenance[name][600:] == -1).all() for name in DONORS)


class Still:
    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return rows[:, : holding_world.GRAPH.state_width]


def test_a_composed_part_has_the_donor_that_it_was_put_there_from() -> None:
    data = holding_world.collect(4_000, seed=0, parked=True)
    parents = fit_parents(data, holding_world.GRAPH, mocoda.make_recipe("mocoda", composition=True))
    table = augment(data, parents, Still(), rows=500, graph=holding_world.GRAPH)
    for name, columns in holding_world.GRAPH.factors.items():
        donor = table.provenance[f"donor_{name}"]
        assert table.rows[:, list(columns)].equal(data.rows[donor][:, list(columns)])


def test_notes_are_what_they_say() -> None:
    noted = made("mocoda", seed=7)
    assert noted.provenance["neighbourhood"].equal(neighbourhood(TASK.graph, noted.rows))
    assert set(map(str, noted.provenance["neighbourhood"][:600].tolist())) == set(noted.source["local_graphs"])
    assert noted.provenance["support"].equal(fit_support(DATA, TASK.graph, seed=7).score(noted.rows))
    expected = disagreement(MODEL, noted.rows[600:], step_scale(DATA))
    assert torch.allclose(noted.provenance["disagreement"][600:], expected)
    assert noted.provenance["disagreement"][:600].abs().max() == 0


def test_a_recipe_of_one_s_own_has_no_number_and_a_model_of_one_s_own_agrees_with_itself() -> None:
    noted = augment(DATA, Box(), Truth(), rows=50, task=TASK)
    assert noted.provenance["recipe"][600:].unique().tolist() == [-1]
    assert noted.provenance["disagreement"].abs().max() == 0
    assert noted.provenance["support"][600:].median() < noted.provenance["support"][:600].median()


def test_what_is_augmented_twice_keeps_where_it_came_from() -> None:
    once = made("coda")
    twice = augment(once, fit_parents(once, TASK.graph, "emp"), rows=10, task=TASK)
    for name in ("recipe", "disagreement", "support"):
        assert twice.provenance[name][:750].equal(once.provenance[name])
    assert twice.provenance["recipe"][750:].unique().tolist() == [1]


# Filters


def rows_of(recipe: str, **limits: Any) -> Transitions:
    return made(recipe, rows=500, keep_recorded=False, **limits)


def test_filters_keep_in_order_what_passes_and_draw_the_rest_anew() -> None:
    free = rows_of("rand")
    middle = float(free.provenance["disagreement"].median())
    limits = {"max_disagreement": middle, "min_support": 0.01}
    passing = (free.provenance["disagreement"] <= middle) & (free.provenance["support"] >= 0.01)
    kept = rows_of("rand", **limits)
    assert len(kept) == 500 and 0 < int(passing.sum()) < 300
    assert kept.provenance["disagreement"].max() <= middle and kept.provenance["support"].min() >= 0.01
    assert_identical(kept[: int(passing.sum())], with_source_of(free[passing], kept))


def test_the_source_tells_what_filters_let_pass() -> None:
    source = made("rand", rows=3_000, min_support=0.2).source["filter"]
    free = made("rand", rows=20_000, keep_recorded=False).provenance["support"]
    assert (source["min_support"], set(source)) == (0.2, {"min_support", "drawn_rows", "accepted_share"})
    assert source["accepted_share"] == 3_000 / source["drawn_rows"]
    assert source["accepted_share"] == pytest.approx(float((free >= 0.2).float().mean()), rel=0.15)
    assert "filter" not in made("rand").source


def test_pieces_are_filtered_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Augmentation, "piece_rows", 64)
    whole = rows_of("mocoda", min_support=0.5)
    parents = fit_parents(DATA, TASK.graph, Mocoda(components=4, **PUBLISHED), seed=0)
    plan = Augmentation(
        DATA, parents, MODEL, rows=500, task=TASK, keep_recorded=False, min_support=0.5, graph=TASK.graph
    )
    pieces = [plan.piece(number) for number in reversed(range(len(plan.sizes)))][::-1]
    joined = concatenate([piece.table for piece in pieces])
    assert joined.rows.equal(whole.rows) and joined.next_state.equal(whole.next_state)
    assert whole.source["filter"]["drawn_rows"] == sum(piece.drawn for piece in pieces)


def test_filters_that_cannot_be_are_refused() -> None:
    coda = fit_parents(DATA, TASK.graph, "coda")
    limits: list[dict[str, Any]] = [{"min_support": 0.1, "provenance": False}, {"min_support": 1.0}]
    limits += [{"max_disagreement": 0.0}, {"max_disagreement": 0.1}]
    for limit in limits:
        with refused():
            augment(DATA, coda, rows=5, **limit)
    for name in ("max_disagreement", "min_support"):  # without an ensemble, without a graph
        unknown: dict[str, Any] = {name: 0.1}
        with refused():
            augment(DATA, Box(), Truth(), rows=5, **unknown)
    with pytest.raises(InputError, match=r"^only 0 of 2.* rows that recipe 'mocoda' draws pass max_disagreement=1e-09"):
        rows_of("mocoda", max_disagreement=1e-9)


class Edge:
    """Parents on the edge of the data, in a place that depends on the seed."""

    def sample(self, n: int, *, seed: int | Stream) -> Tensor:
        assert isinstance(seed, Stream)
        return DATA.rows[seed.integers(600, n)] + 0.3 * seed.normal(n, 4)


def test_a_redrawn_row_is_no_row_that_was_drawn_before() -> None:
    kept = augment(DATA, Edge(), Truth(), rows=800, task=TASK, keep_recorded=False, min_support=0.05)
    assert len(kept.rows.unique(dim=0)) == 800
