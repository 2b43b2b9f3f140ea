"""Graphs multiplied against paths walked one by one, values against the truth, and the whole at a size of no time."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_experiments import TINY as ALL
from torch import Tensor

from experiments.entanglement import Entanglement, reaches, recombined
from experiments.entanglement.values import Lesson, ValueConfig, fit_values, true_values
from mocoda.engine.networks import mlp
from mocoda.engine.randomness import Stream
from mocoda.tasks.objects import HOME, Objects

TINY: Entanglement = ALL["entanglement"]


# Graphs over the horizon


def walked(mask: Tensor, acting: bool) -> set[tuple[int, int]]:
    """Where paths through graphs (T, parents, children) begin and end, by trying them all."""
    children = mask.shape[2]
    ends = set()
    for path in itertools.product(range(children), repeat=len(mask) + 1):
        edges = zip(mask.tolist(), itertools.pairwise(path), strict=True)
        if all(step[parent][child] or (acting and step[-1][child]) for step, (parent, child) in edges):
            ends.add((path[0], path[-1]))
    return ends


@pytest.mark.parametrize("acting", [False, True])
def test_a_product_of_graphs_links_what_a_path_links(acting: bool) -> None:
    mask = Stream(0, "graphs").uniform(20, 4, 4, 3) < 0.25  # 20 episodes of 4 steps; 3 state factors and an action
    found = reaches(mask, acting)
    assert len(found) == 5
    for episode in range(20):
        for steps in range(5):
            ends = walked(mask[episode, :steps], acting)
            assert {(p, c) for p, c in found[steps][episode].nonzero().tolist()} == ends


# Values


def test_true_values_are_the_discounted_rewards_of_the_expert() -> None:
    task, discount = Objects(2), 0.9
    states = task.collect(400, seed=0).state[::40]
    for state, value in zip(states, true_values(task, states, discount).tolist(), strict=True):
        now, total = state[None].double(), 0.0
        for step in range(300):
            action = task.expert(now)
            then = task.step(torch.cat([now, action], 1))
            reward, ended = task.label(now, action, then)
            total += (1 - discount) * discount**step * float(reward)
            now = then
            if ended:
                break
        assert value == pytest.approx(total, abs=2e-3)
    rolling = torch.tensor([[0.76, 0.2, -0.05, 0.0, 0.76, 0.8, -0.05, 0.0, 0.1, 0.5]])
    assert float(true_values(task, rolling, discount)) == 0  # all at home is the end, though they roll on and out


def test_values_are_learned_where_they_can_be_known() -> None:
    """A walk along a line that ends at 1: the value of x is -(1 - discount^steps), the last step being free."""
    discount, size = 0.8, 0.1
    x = Stream(0, "line").uniform(500, 1)
    ended = x[:, 0] + size >= 1
    lesson = Lesson(x, x + size, (1 - discount) * (ended.float() - 1), discount * (~ended).float())
    told = lesson._replace(reward=torch.full((500,), -0.3), ahead=torch.zeros(500))
    config = ValueConfig(updates=800, hidden=(32, 32), batch=64, learning_rate=1e-2, discount=discount)
    weights = fit_values({(0, "walk"): lesson, (1, "told"): told}, config, device="cpu")
    places = torch.linspace(0.05, 0.95, 10)[:, None]
    learned = mlp(weights, "value", places.expand(2, -1, -1))[..., 0]
    truth = -(1 - discount ** (torch.arange(9.0, -1, -1)))
    assert float((learned[0] - truth).abs().mean()) < 0.06
    assert float((learned[1] + 0.3).abs().max()) < 0.02


def test_recombined_states_have_recorded_parts_and_so_many_at_home() -> None:
    task = Objects(3)
    states = task.collect(4_000, seed=0).state
    for home in range(3):
        made = recombined(task, states, home, 200, Stream(0, "made"))
        assert bool(((made[:, 0:12:4] > HOME).sum(1) == home).all())
        for name in task.graph.children:
            columns = list(task.graph.factors[name])
            assert set(map(tuple, made[:, columns].tolist())) <= set(map(tuple, states[:, columns].tolist()))
        assert not set(map(tuple, made.tolist())) & set(map(tuple, states.tolist()))
