"""What a model predicts and samples."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from approved import refused
from dynamics_world import GRAPH, TINY, A, S, each_architecture, model, some_rows
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, LocalGraph
from mocoda.dynamics.fit import VARIANCE_FLOOR, Mechanisms
from mocoda.engine.networks import Weights
from mocoda.engine.randomness import Stream


def blunt(means: Sequence[float], deviation: float, graph: LocalGraph = GRAPH) -> Dynamics:
    """A model whose member i says means[i] for every column, with this standard deviation, whatever it sees."""
    config = replace(TINY, members=len(means), predict_change=False, next_state="noisy")
    made = model("full", config, graph)
    last = f"mlp.{len(config.hidden)}"
    weights = {name: torch.zeros_like(weight) for name, weight in made.weights.items()}
    states = graph.state_width
    weights[f"{last}.bias"][..., :states] = torch.tensor(means)[:, None, None, None]
    weights[f"{last}.bias"][..., states:] = math.log(math.expm1(deviation**2 - VARIANCE_FLOOR))
    plain = {name: torch.ones_like(t) if "scale" in name else torch.zeros_like(t) for name, t in made.scaling.items()}
    return replace(made, weights=weights, scaling=plain)


# predict


@each_architecture
def test_a_prediction_has_a_mean_and_a_positive_scale_per_member_row_and_column(architecture: str) -> None:
    found = model(architecture).predict(some_rows(50))
    assert found.mean.shape == found.scale.shape == (2, 50, S)
    assert found.mean.dtype == found.scale.dtype == torch.float32
    assert bool((found.scale > 0).all()) and bool(found.mean.isfinite().all())
    assert not found.mean.requires_grad
    assert not found.mean[0].equal(found.mean[1])  # the members are different networks


@pytest.mark.parametrize(
    "given", [lambda rows: rows.numpy(), lambda rows: rows.double().numpy(), lambda rows: rows.tolist(), torch.clone]
)
def test_rows_may_be_torch_or_numpy_or_lists(given: Callable[[Tensor], Tensor]) -> None:
    made, rows = model(), some_rows(10)
    assert made.predict(given(rows)).mean.equal(made.predict(rows).mean)
    assert made.sample(given(rows), seed=1).equal(made.sample(rows, seed=1))


@pytest.mark.parametrize("shape", [(4, 8), (4, 10), (9,), (2, 4, 9)])
def test_rows_of_another_width_are_refused(shape: tuple[int, ...]) -> None:
    for ask in (model().predict, functools.partial(model().sample, seed=0)):
        with refused():
            ask(torch.zeros(shape))


@each_architecture
def test_no_rows_in_no_rows_out(architecture: str) -> None:
    found = model(architecture).predict(torch.zeros(0, S + A))
    assert found.mean.shape == found.scale.shape == (2, 0, S)
    assert model(architecture).sample(torch.zeros(0, S + A), seed=0).shape == (0, S)


@each_architecture
@pytest.mark.parametrize("block", [1, 7, 50, 1_000])
def test_the_number_of_rows_at_a_time_changes_nothing(
    architecture: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rows = model(architecture), some_rows(50)
    whole, sampled = made.predict(rows), made.sample(rows, seed=3)
    monkeypatch.setattr(Dynamics, "_block", property(lambda self: block))
    parts = made.predict(rows)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(made.sample(rows, seed=3), sampled, rtol=1e-6, atol=1e-6)


# sample


def test_every_sample_is_one_members_and_members_are_drawn_equally_often() -> None:
    made = blunt([-100.0, 0.0, 100.0], deviation=0.01)
    drawn = made.sample(some_rows(6_000), seed=0)
    assert drawn.shape == (6_000, S) and drawn.dtype == torch.float32
    nearest = (drawn / 100).round()
    assert float((drawn - 100 * nearest).abs().max()) < 0.1  # six standard deviations, and more
    assert nearest.eq(nearest[:, :1]).all()  # all columns of a row come from the same member
    for number in (-1, 0, 1):
        assert int((nearest[:, 0] == number).sum()) == pytest.approx(2_000, abs=150)  # four standard deviations
    alike = nearest[1:, 0] == nearest[:-1, 0]  # whose turn it is has nothing to do with a row's place
    assert float(alike.float().mean()) == pytest.approx(1 / 3, abs=0.03)


def test_only_a_rows_own_member_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    original = Mechanisms.__call__

    def counted(self: Mechanisms, weights: Weights, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        asked.append((len(weights["mlp.0.weight"]), len(rows)))
        return original(self, weights, rows, mask)

    monkeypatch.setattr(Mechanisms, "__call__", counted)
    model("local", replace(TINY, members=4, next_state="noisy")).sample(some_rows(300), seed=0)
    assert {members for members, _ in asked} == {1}
    assert sum(rows for _, rows in asked) == 300
    assert len(asked) == 4


@pytest.mark.parametrize("sharpen", [None, 1.0, 0.5, 3.0])
def test_samples_spread_as_far_as_the_model_says_divided_by_sharpen(sharpen: float | None) -> None:
    """None: the default, the paper's three."""
    made = blunt([2.0], deviation=0.6)
    assert isinstance(made.config, DynamicsConfig)
    if sharpen is not None:
        made = replace(made, config=replace(made.config, sharpen=sharpen))
    found, spread = made.predict(some_rows(3)), 0.6 / (sharpen or 3.0)
    torch.testing.assert_close(found.scale, torch.full((1, 3, S), 0.6), rtol=1e-5, atol=1e-6)
    drawn = made.sample(some_rows(20_000), seed=0)
    torch.testing.assert_close(drawn.std(0), torch.full((S,), spread), rtol=0.025, atol=0.0)  # five standard errors
    torch.testing.assert_close(drawn.mean(0), torch.full((S,), 2.0), rtol=0.0, atol=0.035 * spread)
    assert float((torch.corrcoef(drawn.T) - torch.eye(S)).abs().max()) < 0.04  # columns are independent
    tails = ((drawn - 2.0).abs() > 2 * spread).float().mean()
    assert float(tails) == pytest.approx(0.0455, abs=0.004)  # and Gaussian


@pytest.mark.parametrize("sharpen", [0.0, -1.0, math.nan, math.inf])
def test_sharpen_is_a_positive_number(sharpen: float) -> None:
    with refused():
        DynamicsConfig(sharpen=sharpen)


def test_the_same_seed_draws_the_same_samples_and_another_draws_others() -> None:
    made, rows = model(config=replace(TINY, next_state="noisy")), some_rows()
    once = made.sample(rows, seed=4)
    assert made.sample(rows, seed=4).equal(once)
    assert not made.sample(rows, seed=5).equal(once)
    assert made.sample(rows, seed=Stream(4, "x")).equal(made.sample(rows, seed=Stream(4, "x")))
    assert not made.sample(rows, seed=Stream(4, "x")).equal(made.sample(rows, seed=Stream(4, "y")))
