"""Scores of rows: means and details cannot disagree, and neither order nor units of the data matter."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from approved import refused
from audit_world import GRAPH, step
from command_line import done
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mocoda
from mocoda import LocalGraph, Scores, Transitions, audit, score_rows
from mocoda.analysis.scores import Nearness, RowScorer, nearest
from mocoda.data.transitions import concatenate
from mocoda.data.where import Condition, columns_of
from mocoda.engine.randomness import Stream

MOCODA = 5  # the recipe's number


def recorded(rows: int = 600, seed: int = 0) -> Transitions:
    """y.b is nearly y.a; episodes of 20 steps."""
    given = Stream(seed, "test-scores").normal(rows, 5)
    given[:, 2] = given[:, 1] + 0.05 * given[:, 2]
    episode, number = torch.arange(rows) // 20, torch.arange(rows) % 20
    return Transitions(given[:, :3], given[:, 3:], step(given), episode=episode, step=number)


def joined(data: Transitions, made: Tensor) -> Transitions:
    """The recorded rows and after them generated ones (N, S + A), with true next states."""
    states = data.state.shape[1]
    none = torch.full((len(made),), -1)
    new = Transitions(made[:, :states], made[:, states:], step(made), episode=none, step=none)
    recipe = torch.cat([torch.zeros(len(data)), torch.full((len(made),), MOCODA)]).long()
    return replace(concatenate([data, new]), provenance={"recipe": recipe})


@cache
def scored() -> tuple[Transitions, Scores]:
    """Recorded rows, copies of 100 of them, 100 with another row's y.b, and 100 far away."""
    data = recorded()
    copies, shuffled, far = (data.rows[:100].clone() for _ in range(3))
    shuffled[:, 2] = shuffled[Stream(1, "test-scores").permutation(100), 2]
    far[:, :3] += 100
    whole = joined(data, torch.cat([copies, shuffled, far]))
    return whole, score_rows(whole, GRAPH)


# --- what is scored


def test_copies_are_not_new_and_parts_that_do_not_belong_together_are_not_supported() -> None:
    data, scores = scored()
    copies, shuffled, far = (torch.arange(600 + start, 700 + start) for start in (0, 100, 200))
    flags = scores.flags
    assert (
        not flags["new"][copies].any() and flags["valid"][copies].all() and (scores.details["new"][copies] < 0.01).all()
    )
    assert flags["supported"][copies].double().mean() > 0.9 > 0.2 > flags["supported"][shuffled].double().mean()
    assert flags["new"][far].all() and not flags["valid"][far].any() and not flags["supported"][far].any()
    assert 0.04 < flags["new"][~scores.generated].double().mean() <= 0.05
    assert scores.generated.equal(torch.arange(900) >= 600) and set(scores.worst(50).tolist()) <= set(far.tolist())
    assert len(data) == 900 and "agreed" not in scores.details  # no model, and none noted


def test_rows_are_valid_in_the_recorded_ranges_and_kinds() -> None:
    drawn = Stream(0, "test-kinds")
    angle, count = 3 * drawn.uniform(300), drawn.integers(5, 300).float()
    kind = torch.nn.functional.one_hot(drawn.integers(3, 300), 3).float()
    place = drawn.uniform(300)
    state = torch.cat([torch.stack([place, angle.cos(), angle.sin(), count, (place > 0.5).float()], 1), kind], 1)
    graph = LocalGraph(state={"body": range(8)}, action={"push": 0}, edges={"body": ["body", "push"]})
    data = Transitions(state, drawn.normal(300, 1), state)
    wrong_kind = 1 - float(state[0, 5])
    changes = [(0, 1.5), (1, 1.5), (1, 0.0), (3, 1.5), (4, 0.5), (5, 0.5), (5, wrong_kind)]
    rows = data.rows[:1].repeat(len(changes) + 1, 1)
    for row, (column, value) in enumerate(changes):
        rows[row, column] = value
    scorer = RowScorer.fit(data, replace(graph, constraints={"near": lambda rows: rows[:, 0] < 10}))
    assert scorer.valid(rows).tolist() == [False] * len(changes) + [True]
    assert scorer.valid(data.rows, data.next_state).all()
    assert not scorer.valid(data.rows, data.next_state + 1).any()
    never = RowScorer.fit(data, replace(graph, constraints={"never": lambda rows: rows[:, 0] > 10}))
    assert not never.valid(data.rows).any()


def test_a_model_says_what_its_members_agree_on() -> None:
    data = recorded(300)
    model = mocoda.fit_dynamics(
        data, GRAPH, config=mocoda.DynamicsConfig(members=2, hidden=(16,), features=8, epochs=2)
    )
    whole = joined(data, data.rows[:50] * 5)
    by_model = score_rows(whole, GRAPH, model=model).details["agreed"]
    assert by_model[:300].mean() > by_model[300:].mean()
    noted = replace(whole, provenance={**whole.provenance, "disagreement": torch.linspace(0, 0.6, 350)})
    assert (score_rows(noted, GRAPH).flags["agreed"] == (torch.linspace(0, 0.6, 350) < 0.3)).all()


# --- laws


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(1, 30))
def test_a_table_s_scores_are_means_of_its_details(seed: int, rows: int) -> None:
    drawn = Stream(seed, "test-details")
    details = {
        "valid": drawn.uniform(rows).round(),
        "new": drawn.uniform(rows),
        "confirmed": drawn.integers(3, rows) - 1.0,
    }
    flags = {aspect: score > 0.5 for aspect, score in details.items()}
    episode = drawn.integers(4, rows) - 1
    scores = Scores(details, flags, drawn.uniform(rows) < 0.5, episode)
    kind = scores.generated
    for mask in (None, kind):
        chosen = np.ones(rows, bool) if mask is None else mask.numpy()
        for aspect, score in details.items():
            known = score.numpy()[chosen & (score.numpy() >= 0)]
            mean, share = scores.means(mask)[aspect], scores.shares(mask)[aspect]
            assert (mean, share) == (None, None) if not len(known) else mean == pytest.approx(known.mean())
            assert share is None or share == pytest.approx((known > 0.5).mean())
    if bool((episode >= 0).any()):
        whole = scores.episodes()
        assert whole.episode is not None
        for place, number in enumerate(whole.episode.tolist()):
            own = episode == number
            assert float(whole.details["new"][place]) == pytest.approx(float(details["new"][own].mean()), abs=1e-6)
            assert bool(whole.flags["new"][place]) == bool(flags["new"][own].all())


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 999))
def test_scores_do_not_depend_on_the_order_of_rows(seed: int) -> None:
    data, scores = scored()
    order = torch.cat([torch.arange(600), 600 + Stream(seed, "test-order").permutation(300)])
    again = score_rows(data[order], GRAPH)
    for aspect, score in scores.details.items():
        assert torch.allclose(again.details[aspect], score[order], atol=1e-6), aspect
    near, part = (Nearness.fit(one, GRAPH, Stream(0, "test")) for one in (data[:600], data[:600][order[:600].flip(0)]))
    assert near.limit == pytest.approx(part.limit)


@settings(max_examples=6, deadline=None)
@given(column=st.integers(0, 4), factor=st.sampled_from([1_000.0, 1 / 1_024]))
def test_flags_do_not_depend_on_the_units_of_a_column(column: int, factor: float) -> None:
    data, scores = scored()
    unit = torch.ones(5)
    unit[column] = factor
    other = replace(
        data, state=data.state * unit[:3], action=data.action * unit[3:], next_state=data.next_state * unit[:3]
    )
    graph = replace(GRAPH, local=lambda rows: GRAPH.mask(rows / unit))
    again = score_rows(other, graph)
    for aspect, flag in scores.flags.items():
        differ = again.flags[aspect] != flag
        assert (scores.details[aspect][differ] - 0.5).abs().max() < 1e-3 if differ.any() else True, aspect


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(1, 40), others=st.integers(1, 40), width=st.integers(1, 5))
def test_the_nearest_row_is_as_far_as_a_slow_search_says(seed: int, rows: int, others: int, width: int) -> None:
    drawn = Stream(seed, "test-nearest")
    one, other = drawn.normal(rows, width), drawn.normal(others, width)
    slow = (one[:, None].double() - other[None].double()).norm(dim=2).amin(1)
    assert torch.allclose(nearest(one, other).double(), slow, atol=1e-5)


# --- audits, files and commands


def test_an_audit_says_what_is_true_and_new_and_what_of_the_target_is_covered() -> None:
    data, scores = scored()
    wrong = torch.arange(900) % 2 == 0
    broken = replace(data, next_state=data.next_state + wrong[:, None].float())
    target = data[torch.arange(600, 900)]
    found = audit(broken, step, GRAPH, tolerance=0.1, target=target)
    made = scores.generated
    new = scores.flags["new"][made]
    assert found.new == pytest.approx(float(new.double().mean()))
    assert found.true_and_new is not None and found.coverage is not None
    assert found.true_and_new["share"] == float((new & ~wrong[made]).double().mean())
    assert found.by["recipe"]["mocoda"]["true_and_new"] == found.true_and_new["share"]
    assert found.by["recipe"]["recorded"]["new"] == pytest.approx(0.05, abs=0.01)
    assert found.coverage["recorded"] < 0.7 and found.coverage["all"] > found.coverage["recorded"] + 0.1
    assert audit(broken, step, GRAPH, tolerance=0.1, target=target.state).coverage == found.coverage
    covered = audit(broken, step, GRAPH, tolerance=0.1, target=data[:100]).coverage
    assert covered is not None and covered["recorded"] > 0.6
    alone = audit(replace(data, provenance={}), step, GRAPH, tolerance=0.1)
    assert (alone.new, alone.true_and_new, alone.coverage) == (None, None, None)


def test_scores_are_kept_as_provenance_and_select_rows(tmp_path: Path) -> None:
    data, scores = scored()
    kept = scores.keep(data)
    chosen = Condition("new and not supported and valid < 0.5")(columns_of(kept))
    assert chosen.equal(scores.flags["new"] & ~scores.flags["supported"] & ~scores.flags["valid"])
    with refused():
        scores.keep(data[:10])
    with refused():
        score_rows(data[scores.generated], GRAPH)
    assert len(score_rows(data[scores.generated], GRAPH, recorded=data[~scores.generated]).generated) == 300


def test_check_writes_the_scores_of_a_table_s_rows(tmp_path: Path) -> None:
    task = mocoda.make_task("navigation")
    data = task.collect(200, seed=0)
    parents = mocoda.fit_parents(data, task.graph, "coda")
    mocoda.augment(data, parents, rows=100, task=task).save(tmp_path / "more.hdf5")
    done("check", tmp_path / "more.hdf5", "--quick", "--keep", tmp_path / "scored.hdf5", "--out", tmp_path / "run")
    notes = mocoda.read(tmp_path / "scored.hdf5").provenance
    assert {"valid", "supported", "new", "agreed"} <= set(notes)
    assert all(float(notes[aspect].min()) >= 0 and float(notes[aspect].max()) <= 1 for aspect in ("valid", "new"))
    done("export", tmp_path / "scored.hdf5", "--to", tmp_path / "new.hdf5", "--where", "new > 0.5 and supported")
    assert 0 < len(mocoda.read(tmp_path / "new.hdf5")) < 300
