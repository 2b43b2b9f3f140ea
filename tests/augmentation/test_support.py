from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mocoda import LocalGraph, Transitions
from mocoda.augmentation.support import disagreement, fit_support, local_graphs, step_scale
from mocoda.dynamics import Prediction
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.parents.groups import neighbourhood
from mocoda.tasks.navigation import GRAPH, Navigation

DATA = Navigation().collect(4_000, seed=0)
SUPPORT = fit_support(DATA, GRAPH, components=8)


# Support


def test_the_score_of_the_recorded_rows_is_uniform() -> None:
    score = SUPPORT.score(DATA.rows)
    assert score.dtype == torch.float32 and score.shape == (4_000,)
    wanted = torch.linspace(0, 1, 101)
    assert (score.quantile(wanted) - wanted).abs().max() < 0.01


def test_a_row_beyond_all_that_was_recorded_has_no_support_whichever_set_it_leaves() -> None:
    for column in range(4):
        far = DATA.rows[:50].clone()
        far[:, column] += 10
        assert SUPPORT.score(far).max() == 0


def test_a_row_is_as_rare_as_its_rarest_parent_set() -> None:
    rows = Stream(0).uniform(500, 4, high=0.9)
    densities, known = SUPPORT.mixtures.log_prob(rows), SUPPORT.mixtures.log_prob(DATA.rows)

    def rarest(points: Tensor) -> Tensor:
        by_hand = [(known[:, s] <= points[:, s, None]).double().mean(1) for s in (0, 1)]
        return torch.minimum(*by_hand)

    expected = (rarest(known) <= rarest(densities)[:, None]).double().mean(1)
    assert (SUPPORT.score(rows) - expected).abs().max() < 1e-6


def test_new_pairs_of_what_was_recorded_are_supported() -> None:
    rows = DATA.rows.clone()
    mixed = rows[:, [0, 2]], rows[Stream(1).permutation(4_000)][:, [1, 3]]
    rows[:, [0, 2]], rows[:, [1, 3]] = mixed[0], mixed[1]
    assert SUPPORT.score(rows).quantile(0.5) > 0.4


# Disagreement


class Members:
    """A model whose members' means are given: (E, N, S)."""

    def __init__(self, graph: LocalGraph, mean: Tensor) -> None:
        self.graph, self.mean = graph, mean

    def predict(self, rows: Tensor) -> Prediction:
        return Prediction(self.mean, torch.ones_like(self.mean))

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return self.mean[0]


WIDE = LocalGraph(state={"a": [0, 2], "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b", "u"]})


def test_disagreement_is_the_largest_child_s_root_mean_square_distance_from_the_middle() -> None:
    mean, scale = Stream(0).normal(4, 6, 3), torch.tensor([1.0, 0.1, 2.0])
    found = disagreement(Members(WIDE, mean), torch.zeros(6, 4), scale)
    for row in range(6):
        apart = (mean[:, row] - mean[:, row].mean(0)) / scale  # (E, S)
        children = [apart[:, [0, 2]].square().mean().sqrt(), apart[:, [1]].square().mean().sqrt()]
        assert found[row] == pytest.approx(max(map(float, children)), rel=1e-5)


def test_members_that_agree_do_not_disagree_and_units_do_not_matter() -> None:
    mean, scale = Stream(0).normal(3, 5, 3), torch.tensor([1.0, 0.1, 2.0])
    rows, factor = torch.zeros(5, 4), torch.tensor([10.0, 0.001, 7.0])
    assert disagreement(Members(WIDE, mean[:1].expand(3, -1, -1)), rows, scale).max() < 1e-6
    one = disagreement(Members(WIDE, mean), rows, scale)
    assert torch.allclose(one, disagreement(Members(WIDE, mean * factor), rows, scale * factor))


def test_a_model_that_has_no_scale_needs_one() -> None:
    with pytest.raises(InputError, match=r"^this model does not know how long a step is; pass scale="):
        disagreement(Members(WIDE, torch.zeros(2, 1, 3)), torch.zeros(1, 4))


def test_the_scale_of_a_step_is_that_of_the_change_and_never_zero() -> None:
    state = torch.tensor([[5.0, 1.0], [9.0, 2.0]])
    data = Transitions(state, torch.zeros(2, 1), state + torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    assert step_scale(data).tolist() == [1.0, 1.0]


# Neighbourhoods


def test_the_sparsest_graph_is_number_0_and_every_other_edge_a_binary_digit() -> None:
    found = neighbourhood(GRAPH, torch.tensor([[0.1, 0.1, 0, 0], [0.9, 0.9, 0, 0], [0.9, 0.1, 0, 0]]))
    # Edges in order: x->x, x->y, y->x, y->y, dx->x, dx->y, dy->x, dy->y; the quadrant adds numbers 1, 2, 5 and 6.
    assert found.tolist() == [0, 2**1 + 2**2 + 2**5 + 2**6, 0]


def test_the_source_s_names_are_those_of_the_numbers_commonest_first() -> None:
    graphs = local_graphs(GRAPH, DATA.rows)
    numbers, counts = neighbourhood(GRAPH, DATA.rows).unique(return_counts=True)
    assert {int(name): one["rows"] for name, one in graphs.items()} == dict(
        zip(numbers.tolist(), counts.tolist(), strict=True)
    )
    assert list(graphs) == ["0", "102"]
    assert graphs["0"]["edges"] == ["x -> x", "y -> y", "dx -> x", "dy -> y"]
    assert len(graphs["102"]["edges"]) == 8


def test_graphs_of_many_edges_have_numbers_too_all_of_them_different() -> None:
    names = [f"s{i}" for i in range(9)]

    def local(rows: Tensor) -> Tensor:
        mask = torch.eye(10, 9, dtype=torch.bool).repeat(len(rows), 1, 1)
        mask[:, 0, 1:] = rows[:, 1:9] > 0  # who depends on s0
        return mask

    graph = LocalGraph(
        state={name: i for i, name in enumerate(names)}, action={"u": 0}, edges={n: [n] for n in names}, local=local
    )
    rows = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 8)
    rows = torch.cat([torch.zeros(len(rows), 1), rows, torch.zeros(len(rows), 1)], 1)
    found = neighbourhood(graph, rows)
    assert found.min() == 0 == found[0]
    assert len(found.unique()) == len(rows)
