"""`mocoda.audit` in a world whose every step is known: each number is one that was counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from approved import refused
from audit_world import GRAPH, numpy_step, step, table
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score
from torch import Tensor

from mocoda import InputError, Transitions, audit
from mocoda.analysis.replay import EnvironmentStep
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import area_under_curve, wilson

MOCODA = 5  # the recipe's number


# --- shares


@pytest.mark.parametrize("truth", [step, numpy_step])
def test_the_share_of_rows_that_are_off_by_less_than_the_tolerance_is_confirmed(truth: Any) -> None:
    off = table(400, wrong=range(100), by=(0.2, 0.0, 0.0))
    assert audit(off, truth, GRAPH, tolerance=0.1).confirmed == 0.75
    assert audit(off, truth, GRAPH, tolerance=0.3).confirmed == 1.0
    found = audit(off, truth, GRAPH, tolerance=0.1)
    assert found.rows == 400 and found.interval == wilson(300, 400)
    assert found.verdict.tolist() == [0] * 100 + [1] * 300


def test_a_factor_s_distance_is_euclidean_over_its_columns() -> None:
    off = table(100, wrong=range(50), by=(0.0, 0.3, 0.4))
    assert audit(off, step, GRAPH, tolerance=0.51).confirmed == 1.0
    found = audit(off, step, GRAPH, tolerance=0.49)
    assert found.confirmed == 0.5
    assert (found.by["factor"]["x"]["share"], found.by["factor"]["y"]["share"]) == (1.0, 0.5)
    assert audit(off, step, GRAPH, tolerance=0.35, columns=["x", "y.a"]).confirmed == 1.0
    assert audit(off, step, GRAPH, tolerance=0.35, columns=[0, 2]).confirmed == 0.5


def test_each_factor_may_have_its_own_tolerance_and_those_left_out_are_not_compared() -> None:
    off = table(100, wrong=range(20), by=(0.2, 0.5, 0.0))
    assert audit(off, step, GRAPH, tolerance={"x": 0.3, "y": 0.6}).confirmed == 1.0
    assert audit(off, step, GRAPH, tolerance={"x": 0.1, "y": 0.6}).confirmed == 0.8
    found = audit(off, step, GRAPH, tolerance={"x": 0.3})
    assert (found.confirmed, found.tolerance, found.columns) == (1.0, {"x": 0.3}, ("x",))


def test_without_a_tolerance_it_is_a_tenth_of_the_standard_deviation_of_recorded_steps() -> None:
    off = table(500, recipe=torch.arange(500) % 2 * MOCODA)
    recorded = (off.next_state - off.state)[::2].double()
    found = audit(off, step, GRAPH)
    wanted = {"x": 0.1 * recorded[:, 0].std(correction=0), "y": 0.1 * recorded[:, 1:].var(0, correction=0).sum().sqrt()}
    assert found.tolerance == pytest.approx({name: float(limit) for name, limit in wanted.items()})


def test_generated_rows_count_and_recorded_ones_stand_beside() -> None:
    recipe = torch.tensor([0] * 100 + [MOCODA] * 100 + [2] * 50 + [-1] * 50)
    found = audit(table(300, wrong=[*range(95, 130), *range(290, 300)], by=(1, 0, 0), recipe=recipe), step, GRAPH)
    shares = {name: (cell["share"], cell["rows"]) for name, cell in found.by["recipe"].items()}
    assert shares == {"recorded": (0.95, 100), "coda": (1.0, 50), "mocoda": (0.7, 100), "own": (0.8, 50)}
    assert (found.confirmed, found.rows) == (0.8, 200)
    assert found.by["factor"]["x"]["recorded"]["share"] == 0.95
    assert found.by["factor"]["x"]["median_error"] < 1e-6


def test_rows_are_counted_by_their_local_graph() -> None:
    data = table(1_000, recipe=MOCODA)
    coupled = data.state[:, 0] > 0
    moved = data.next_state.clone()
    moved[coupled, 1] += 1.0
    found = audit(replace(data, next_state=moved), step, GRAPH, tolerance=0.1)
    cells = {name: (cell["share"], cell["rows"]) for name, cell in found.by["local_graph"].items()}
    assert cells == {"sparsest": (1.0, int((~coupled).sum())), "+ x -> y": (0.0, int(coupled.sum()))}


def test_a_random_subset_is_audited_and_the_rest_says_so() -> None:
    seen: list[int] = []

    def counting(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return step(rows)

    data = table(2_000, wrong=range(1_000), by=(1, 0, 0))
    found = audit(data, counting, GRAPH, tolerance=0.1, rows=600, seed=3)
    assert sum(seen) == found.rows == 600
    assert sorted(found.verdict.unique().tolist()) == [-1, 0, 1] and int((found.verdict >= 0).sum()) == 600
    low, high = found.interval
    assert low < 0.5 < high
    assert audit(data, step, GRAPH, tolerance=0.1, rows=600, seed=3).verdict.equal(found.verdict)
    assert not audit(data, step, GRAPH, tolerance=0.1, rows=600, seed=4).verdict.equal(found.verdict)
    assert audit(data, step, GRAPH, tolerance=0.1, rows=5_000).rows == 2_000


# --- episodes


def in_episodes(data: Transitions, steps: int = 10) -> Transitions:
    """The rows of a table, as episodes of so many steps."""
    return replace(data, episode=torch.arange(len(data)) // steps, step=torch.arange(len(data)) % steps)


def test_an_episode_is_true_if_all_its_steps_are() -> None:
    """Four recorded episodes, one of them with a wrong step; six generated ones, of which two go wrong at step 7."""
    recipe = torch.tensor([0] * 40 + [MOCODA] * 60)
    data = in_episodes(table(100, wrong=[25, 47, 48, 49, 57], by=(1, 0, 0), recipe=recipe))
    found = audit(data, step, GRAPH, tolerance=0.1)
    cells = {name: (cell["share"], cell["episodes"], cell["rows"]) for name, cell in found.by["episode"].items()}
    assert cells == {"recorded": (0.75, 4, 40), "mocoda": (4 / 6, 6, 60)}
    assert found.by["episode"]["mocoda"]["interval"] == wilson(4, 6)
    assert found.by["episode"]["mocoda"]["true_steps"] == 10.0
    late = audit(in_episodes(table(30, wrong=[7, 18, 29], by=(1, 0, 0))), step, GRAPH, tolerance=0.1)
    assert late.by["episode"]["all episodes"]["true_steps"] == 8.0 and late.by["episode"]["all episodes"]["share"] == 0
    shuffled = Stream(0, "order").permutation(100)
    assert audit(data[shuffled], step, GRAPH, tolerance=0.1).by["episode"] == found.by["episode"]


def test_rows_are_counted_by_their_step_and_recorded_ones_alike() -> None:
    recipe = torch.tensor([0] * 100 + [MOCODA] * 100)
    data = in_episodes(table(200, wrong=range(109, 200, 10), by=(1, 0, 0), recipe=recipe))
    by = audit(data, step, GRAPH, tolerance=0.1).by["step"]
    assert [cell["rows"] for cell in by.values()] == [10] * 10
    assert [cell["share"] for cell in by.values()] == [1.0] * 9 + [0.0]
    assert [cell["recorded"]["share"] for cell in by.values()] == [1.0] * 10


def test_whole_episodes_are_drawn_of_generated_and_recorded_ones() -> None:
    recipe = torch.tensor([0] * 200 + [MOCODA] * 300)
    data = in_episodes(table(500, recipe=recipe))
    found = audit(data, step, GRAPH, tolerance=0.1, episodes=12, seed=3)
    counts = {name: (cell["episodes"], cell["rows"]) for name, cell in found.by["episode"].items()}
    assert counts == {"recorded": (12, 120), "mocoda": (12, 120)}
    assert data.episode is not None
    audited = [found.verdict[data.episode == number].eq(-1).float().mean().item() for number in range(50)]
    assert sorted(audited) == [0.0] * 24 + [1.0] * 26
    assert audit(data, step, GRAPH, tolerance=0.1, episodes=12, seed=3).verdict.equal(found.verdict)
    assert not audit(data, step, GRAPH, tolerance=0.1, episodes=12, seed=4).verdict.equal(found.verdict)
    assert audit(data, step, GRAPH, tolerance=0.1, episodes=99).rows == 300


def test_nothing_is_said_of_episodes_that_are_not_whole_or_not_generated() -> None:
    recipe = torch.tensor([0] * 200 + [MOCODA] * 300)
    data = in_episodes(table(500, recipe=recipe))
    assert "episode" not in audit(data, step, GRAPH, tolerance=0.1, rows=200).by
    assert "step" in audit(data, step, GRAPH, tolerance=0.1, rows=200).by
    assert data.episode is not None
    rows = replace(data, episode=torch.where(recipe > 0, -1, data.episode))
    assert not {"episode", "step"} & set(audit(rows, step, GRAPH, tolerance=0.1).by)


# --- intervals and predictors


@given(st.integers(1, 200), st.floats(0, 1))
@settings(deadline=None)
def test_an_interval_of_a_share_is_scipys(n: int, share: float) -> None:
    wanted = binomtest(round(share * n), n).proportion_ci(0.95, "wilson")
    assert wilson(round(share * n), n) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_an_area_is_scikit_learns_and_none_if_rows_are_all_alike() -> None:
    scores, truth = torch.tensor([1.0, 2.0, 2.0, 3.0, 0.0]), torch.tensor([True, False, True, True, False])
    assert area_under_curve(scores, truth)["auroc"] == pytest.approx(roc_auc_score(truth, scores))
    assert area_under_curve(scores, torch.ones(5, dtype=torch.bool))["auroc"] is None


def test_95_percent_of_the_intervals_hold_the_true_area() -> None:
    covered, true = [], 0.7602  # of two normal distributions one standard deviation apart: Phi(1 / sqrt(2))
    for seed in range(400):
        stream = Stream(seed, "areas")
        truth = stream.uniform(300) < 0.7
        low, high = area_under_curve(stream.normal(300) + truth, truth)["interval"]
        covered.append(low <= true <= high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)


def test_predictors_know_true_rows_as_well_as_they_do() -> None:
    data = table(4_000, wrong=range(2_000), by=(1, 0, 0), recipe=MOCODA)
    wrong = (torch.arange(4_000) < 2_000).float()
    noise = Stream(0, "noise").normal(4_000)
    notes = {**data.provenance, "disagreement": noise + wrong, "support": 1 - wrong}
    found = audit(replace(data, provenance=notes), step, GRAPH, tolerance=0.1)
    assert found.predictors["support"]["auroc"] == 1.0
    assert found.predictors["disagreement"]["auroc"] == pytest.approx(0.7602, abs=0.02)
    low, high = found.predictors["disagreement"]["interval"]
    assert low < 0.7602 < high


# --- replaying


def test_what_is_finished_is_kept_and_not_asked_again(tmp_path: Path) -> None:
    data, file = table(1_000, wrong=range(100), by=(1, 0, 0)), tmp_path / "replayed.safetensors"
    seen: list[int] = []

    def failing(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return step(rows)

    with pytest.raises(KeyboardInterrupt):
        audit(data, failing, GRAPH, tolerance=0.1, checkpoint=file)
    seen.append(0)
    again = audit(data, failing, GRAPH, tolerance=0.1, checkpoint=file)
    assert seen == [*[100] * 3, 0, *[100] * 8]
    whole = audit(data, step, GRAPH, tolerance=0.1)
    assert replace(again, simulator={}).to_json() == replace(whole, simulator={}).to_json()


class Point(gymnasium.Env[Any, Any]):
    """Moves by its action; its observation is a dictionary."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {"observation": gymnasium.spaces.Box(-9, 9, (3,)), "desired_goal": gymnasium.spaces.Box(-9, 9, (1,))}
        )
        self.action_space = gymnasium.spaces.Box(-9, 9, (2,))

    def reset(self, **_: Any) -> Any:
        self.place = np.zeros(3)
        return {"observation": self.place, "desired_goal": np.zeros(1)}, {}

    def step(self, action: Any) -> Any:
        self.place = self.place + np.array([action[0], action[1], -action[1]])
        return {"observation": self.place, "desired_goal": np.zeros(1)}, 0.0, False, False, {}


def put(env: Any, state: Any) -> None:
    env.place = state


def test_a_gymnasium_environment_that_is_put_in_a_state_knows_the_truth() -> None:
    gymnasium.register("tests/Point-v0", lambda **_: Point())
    data = table(60, wrong=range(6), by=(1, 0, 0))
    assert audit(data, EnvironmentStep("tests/Point-v0", put), GRAPH, tolerance=0.01).confirmed == 0.9


# --- what is printed


# --- bad input


def fails(data: Transitions, truth: Any, **options: Any) -> None:
    with refused():
        audit(data, truth, GRAPH, **{"tolerance": 0.1, **options})


def test_a_step_that_answers_badly_is_refused() -> None:
    data = table(300)
    fails(data, lambda rows: rows)
    fails(data, lambda rows: None)

    def forgetful(rows: Tensor) -> Tensor:
        answer = step(rows)
        answer[rows[:, 0] == data.state[270, 0]] = float("nan")
        return answer

    fails(data, forgetful)

    def picky(rows: Tensor) -> Tensor:
        if bool((rows[:, 0] == data.state[7, 0]).any()):
            raise RuntimeError("the box is in the wall.")
        return step(rows)

    fails(data, picky)

    def crowded(rows: Tensor) -> Tensor:
        if len(rows) > 1:
            raise MemoryError
        return step(rows)

    fails(data, crowded)
    with pytest.raises(InputError, match="must be a function that they can import"):
        audit(data, lambda rows: step(rows), GRAPH, tolerance=0.1, workers=1)


@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": 0},
        {"tolerance": {"y": -1.0}},
        {"tolerance": {"z": 1.0}},
        {"tolerance": {"x": 1.0}, "columns": ["y.a"]},
        {"tolerance": {}},
        {"columns": ["y.c"]},
        {"rows": 0},
        {"rows": 5, "episodes": 3},
        {"episodes": 0},
        {"episodes": 3},
    ],
    ids=["zero", "negative", "factor", "column", "nothing", "unknown", "rows", "both", "episodes", "no episodes"],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    fails(table(20), step, **options)


def test_data_that_cannot_be_audited_is_refused() -> None:
    data = table(20)
    fails(table(1_000, recipe=(torch.arange(1_000) == 0).long()), step, rows=5)
    with refused():
        audit(data, step, GRAPH, tolerance=0.1).keep(table(300))


def test_an_environment_that_cannot_be_made_or_has_no_box_of_actions_is_refused() -> None:
    with pytest.raises(InputError, match="cannot make the environment 'tests/Nowhere-v0'"):
        audit(table(20), EnvironmentStep("tests/Nowhere-v0", put), GRAPH, tolerance=0.1)
    fails(table(20), EnvironmentStep("CartPole-v1", put))
