"""Learned graphs: what is found in data with known edges, and that a learned graph is a graph like any other."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from approved import refused
from command_line import mocoda as run
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

import mocoda
from experiments.random_dag import RandomDag
from mocoda import (
    GateLearner,
    GraphLearner,
    LearnedGraph,
    Transitions,
    check_learner,
    learn_graph,
    load_graph,
)
from mocoda.engine.networks import Weights
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream
from mocoda.graph import LEARNERS, GradientLearner
from mocoda.graph.explain import explain, rules_as_toml
from mocoda.graph.learning.baseline import Table
from mocoda.graph.learning.dense import BASELINE_SHARE, MAX_FALSE, MIN_MOVED, REDRAWS, DenseModel
from mocoda.graph.learning.gate_networks import Layout, gate_weights, through_bodies
from mocoda.graph.learning.learn import never_met
from mocoda.graph.local_graph import LocalGraph

TASK = mocoda.make_task("navigation")
BRIEF = GateLearner(runs=1, hidden=16, baseline_steps=4, steps=4, batch=16)


@pytest.fixture(scope="module")
def data() -> Transitions:
    recorded: Transitions = TASK.collect(3_000, seed=0)
    return recorded


@pytest.fixture(scope="module")
def graph(data: Transitions) -> LearnedGraph:
    return learn_graph(data, seed=0, learner=GateLearner(runs=1, hidden=32, baseline_steps=200, steps=500))


def apart(rows: int, gap: float) -> Transitions:
    """Two bodies that walk at random, this far from each other at least."""
    stream = Stream(0, "apart")
    state, move = stream.uniform(rows, 4), 0.05 * stream.normal(rows, 2)
    state[:, 2:] += 1 + gap
    columns = ("a.x", "a.y", "b.x", "b.y", "push.x", "push.y")
    next_state = state.clone()
    next_state[:, :2] += move
    return Transitions(state, move, next_state, columns=columns)


def test_the_edges_of_navigation_are_found(data: Transitions, graph: LearnedGraph) -> None:
    rows = TASK.collect(2_000, seed=1).rows
    truth, probability = TASK.graph.mask(rows), graph.edge_probability(rows)
    assert graph.edges == {"x": ("x", "dx"), "y": ("y", "dy")}
    assert roc_auc_score(truth.flatten().numpy(), probability.flatten().numpy()) > 0.99
    same = (graph.mask(rows) == truth).float()
    assert float(same.mean()) > 0.9
    assert graph.parent_sets == TASK.graph.parent_sets


def test_gates_that_gave_up_are_trained_again(data: Transitions, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def hopeless_at_first(layout: Layout, runs: int, hidden: int, stream: Stream) -> dict[str, Tensor]:
        weights = gate_weights(layout, runs, hidden, stream)
        begun.append(runs)
        if len(begun) == 2:  # the first networks tell which rows depart; here no row with an edge is felt
            weights["sum.2.bias"] -= 60.0
        return weights

    monkeypatch.setattr("mocoda.graph.learning.gates.gate_weights", hopeless_at_first)
    graph = learn_graph(data, seed=0, learner=GateLearner(runs=1, hidden=32, baseline_steps=200, steps=500))
    assert len(begun) == 3
    assert float(graph.shares(data.rows)[2, 1]) == pytest.approx(0.22, abs=0.05)  # y depends on dx in the quadrant


def test_a_graph_says_what_it_found(graph: LearnedGraph) -> None:
    lines = str(graph).splitlines()
    assert lines[0] == "LocalGraph(x' <- x, dx, y' <- y, dy, and local edges)"
    assert re.fullmatch(
        r"  x depends on x, dx, and in some rows on y \(\d+% of the rows\), dy \(\d+% of the rows\)", lines[1]
    )


def test_a_file_gives_back_the_same_graph_to_the_bit(graph: LearnedGraph, data: Transitions, tmp_path: Path) -> None:
    file = tmp_path / "learned.graph"
    graph.save(file)
    for loaded in (load_graph(file), load_graph(file, data), mocoda.load_task(file, data).graph):
        assert isinstance(loaded, LearnedGraph)
        assert torch.equal(loaded.edge_probability(data.rows), graph.edge_probability(data.rows))
        assert torch.equal(loaded.mask(data.rows), graph.mask(data.rows))
        assert (str(loaded), loaded.edges, loaded.parent_sets) == (str(graph), graph.edges, graph.parent_sets)
    again = tmp_path / "again.graph"
    load_graph(file).save(again)  # type: ignore[attr-defined]
    assert again.read_bytes() == file.read_bytes()


def test_a_file_keeps_the_order_of_the_factors(data: Transitions, tmp_path: Path) -> None:
    graph = learn_graph(data, {"b": 0, "a": 1}, {"d": 0, "c": 1}, unseen="apart", learner=BRIEF)
    graph.save(tmp_path / "learned.graph")
    loaded = load_graph(tmp_path / "learned.graph")
    assert (loaded.parents, loaded.children) == (graph.parents, graph.children) == (("b", "a", "d", "c"), ("b", "a"))
    assert isinstance(loaded, LearnedGraph)
    assert torch.equal(loaded.edge_probability(data.rows), graph.edge_probability(data.rows))


def test_probabilities_do_not_depend_on_the_rows_beside_a_row(graph: LearnedGraph, data: Transitions) -> None:
    whole = graph.edge_probability(data.rows[:700])
    assert torch.equal(whole[300:301], graph.edge_probability(data.rows[300:301]))
    assert torch.equal(whole[123:650], graph.edge_probability(data.rows[123:650]))
    assert graph.edge_probability(data.rows[:0]).shape == (0, 4, 2)


def test_the_mask_is_where_edges_are_likelier_than_caution(graph: LearnedGraph, data: Transitions) -> None:
    likely = graph.edge_probability(data.rows) > graph.caution
    assert torch.equal(graph.mask(data.rows), likely | graph.sparsest)
    bold = graph.with_caution(0.9, data.rows)
    assert bool((bold.mask(data.rows) <= graph.mask(data.rows)).all())
    assert int(bold.mask(data.rows).sum()) < int(graph.mask(data.rows).sum())


def test_where_an_action_acts_so_does_what_it_always_moves(graph: LearnedGraph, data: Transitions) -> None:
    likely = graph.edge_probability(data.rows)
    for action, body, other in (("dx", "x", "y"), ("dy", "y", "x")):
        assert action in graph.edges[body] and action not in graph.edges[other]
        edge = likely[:, :, graph.children.index(other)]
        assert bool((edge[:, graph.parents.index(body)] >= edge[:, graph.parents.index(action)]).all())


@given(st.integers(0, 2**16), st.integers(1, 3), st.integers(1, 3))
def test_only_bodies_of_an_action_that_acts_elsewhere_are_likelier_for_it(seed: int, children: int, acts: int) -> None:
    stream, size = Stream(seed, "bodies"), (children + acts, children)
    always, chance = (stream.uniform(*size) < 0.3) | torch.eye(*size).bool(), stream.uniform(5, *size)
    found = through_bodies(chance, always)
    for p in range(children + acts):
        for c in range(children):
            others = range(children, children + acts) if p < children else ()
            through = [a for a in others if always[a, p] and not always[a, c]]
            assert found[:, p, c].equal(torch.stack([chance[:, a, c] for a in (p, *through)]).amax(0))


def test_the_same_seed_learns_the_same_graph_and_another_one_another(data: Transitions) -> None:
    one, same, other = (learn_graph(data, seed=seed, learner=BRIEF) for seed in (1, 1, 2))
    assert torch.equal(one.edge_probability(data.rows), same.edge_probability(data.rows))
    assert not torch.equal(one.edge_probability(data.rows), other.edge_probability(data.rows))


def test_a_model_sees_no_parent_that_the_learned_mask_leaves_out(graph: LearnedGraph, data: Transitions) -> None:
    config = mocoda.DynamicsConfig(members=2, hidden=(16,), features=8, epochs=1, window=1)
    model = mocoda.fit_dynamics(data, graph, config=config)
    rows = data.rows[~graph.mask(data.rows)[:, 3, 0]][:64]  # x does not depend on dy here
    moved = rows.clone()
    moved[:, 3] = moved[:, 3] * 0.999  # where the mask stays as it is
    still = (graph.mask(rows) == graph.mask(moved)).flatten(1).all(1)
    assert int(still.sum()) > 30
    assert torch.equal(model.predict(rows).mean[:, still, 0], model.predict(moved).mean[:, still, 0])


def test_augment_takes_a_learned_graph(graph: LearnedGraph, data: Transitions) -> None:
    config = mocoda.DynamicsConfig(members=2, hidden=(16,), features=8, epochs=1, window=1)
    parents = mocoda.fit_parents(data, graph, "coda", seed=0)
    model = mocoda.fit_dynamics(data, graph, config=config)
    assert len(mocoda.augment(data, parents, model, rows=500, seed=0)) >= 500


def test_rules_are_proposed_and_written(graph: LearnedGraph, data: Transitions, tmp_path: Path) -> None:
    rules = explain(graph, data.rows)
    (rule,) = (rule for rule in rules if (rule.parent, rule.child) == ("y", "x"))
    assert rule.agrees > 0.95
    assert "y > 0." in rule.where
    file = tmp_path / "rules.toml"
    file.write_text(rules_as_toml(graph, rules))
    written = load_graph(file, data)
    assert bool((written.mask(data.rows) >= graph.sparsest).all())


@pytest.mark.long
def test_check_says_where_a_learned_graph_is_unsure(graph: LearnedGraph, data: Transitions, tmp_path: Path) -> None:
    table, file = tmp_path / "data.hdf5", tmp_path / "learned.graph"
    data.save(table)
    graph.save(file)
    checked = run("check", table, "--graph", file, "--quick", "--out", tmp_path / "check")
    assert checked.code == 0
    doubts = graph.doubts(data.rows)
    assert list(doubts.values()) == sorted(doubts.values(), reverse=True)
    assert all(0 < share < 1 for share in doubts.values())
    assert "Where the learned graph is unsure of an edge, in percent of the rows:" in checked.out + checked.err
    assert json.loads((tmp_path / "check" / "advice.json").read_text())["unsure"] == doubts


# --- what cannot be used


def test_factors_must_cover_every_column_once(data: Transitions) -> None:
    for state in ({"x": 0}, {"x": 0, "both": slice(0, 2)}):
        with refused():
            learn_graph(data, state)


def test_data_that_nothing_can_be_learned_from_is_refused(data: Transitions) -> None:
    state, next_state = (torch.cat([part, torch.ones(len(data), 1)], 1) for part in (data.state, data.next_state))
    still = Transitions(state, data.action, next_state, columns=("x", "y", "lamp", "dx", "dy"))
    nameless = Transitions(data.state, data.action, data.next_state)
    for unusable in (data[:999], still, nameless):
        with refused():
            learn_graph(unusable, learner=BRIEF)
    assert learn_graph(nameless, {"x": 0, "y": 1}, learner=BRIEF).action == {"action": (0, 1)}


def test_factors_that_never_meet_are_linked_with_a_warning_unless_the_user_says_otherwise() -> None:
    strangers = apart(1_000, gap=3.0)
    with pytest.warns(UserWarning, match="a/b") as warned:
        safe = learn_graph(strangers, learner=BRIEF)
    assert len(str(warned[0].message)) <= 160
    linked = learn_graph(strangers, unseen="linked", learner=BRIEF)
    for graph in (safe, linked):
        assert "b" in graph.edges["a"] and "a" in graph.edges["b"]
    kept = learn_graph(strangers, unseen="apart", learner=BRIEF).mask(strangers.rows)
    assert not bool(kept[:, 1, 0].any()) and not bool(kept[:, 0, 1].any())


def columns_of(*names: str) -> tuple[Transitions, LocalGraph]:
    """Rows of two factors in which the columns called x are far from each other and all others are near."""
    state = 0.1 * Stream(0, "columns").normal(1_000, len(names))
    state[:, [i for i, name in enumerate(names) if name.endswith("b.x")]] += 9.0
    factors: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        factors.setdefault(name[0], []).append(i)
    data = Transitions(state, torch.zeros(1_000, 1), state, columns=(*names, "push"))
    return data, LocalGraph(factors, {"push": [0]}, {name: [name] for name in factors})


@pytest.mark.parametrize(
    ("names", "apart"),
    [
        (("a.x", "b.x"), True),
        (("a.vx", "a.vy", "a.x", "b.x", "b.vx", "b.vy"), True),  # wherever they are, and whatever else is near
        (("a.x", "a.y", "a.z", "b.x", "b.y", "b.z"), False),  # near in two of three
        (("a.x", "a.open", "b.speed", "b.open"), False),  # no position, but another column in common
        (("a.angle", "b.open"), False),  # nothing to compare
    ],
)
def test_factors_meet_where_columns_of_one_kind_are_near(names: tuple[str, ...], apart: bool) -> None:
    assert bool(never_met(*columns_of(*names))[0, 1]) is apart


def test_columns_without_names_are_compared_if_factors_are_equally_wide() -> None:
    state = torch.linspace(0, 1, 100)[:, None] + torch.tensor([0.0, 0.0, 5.0, 5.0, 9.0])
    data = Transitions(state, torch.zeros(100, 1), state)
    graph = LocalGraph({"a": [0, 1], "b": [2, 3], "c": [4]}, {"push": [0]}, {"a": ["a"], "b": ["b"], "c": ["c"]})
    assert never_met(data, graph)[:3].tolist() == [[False, True, False], [True, False, False], [False] * 3]


def test_options_out_of_range_are_refused(data: Transitions) -> None:
    options: list[dict[str, Any]] = [{"caution": 1.5}, {"unseen": "maybe"}, {"learner": "gate"}]
    for chosen in options:
        with refused():
            learn_graph(data, **chosen)
    for make in (lambda: GateLearner(steps=0), lambda: GradientLearner(sensitivity=0.0)):
        with refused():
            make()


def test_damaged_files_and_other_columns_are_refused(graph: LearnedGraph, data: Transitions, tmp_path: Path) -> None:
    file, damaged = tmp_path / "learned.graph", tmp_path / "damaged.graph"
    graph.save(file)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    with refused():
        load_graph(damaged, data)
    with refused():
        load_graph(file, Transitions(data.state, data.action, data.next_state, columns=("u", "v", "dx", "dy")))
    with refused():
        load_graph(tmp_path / "graph.toml")


# --- the contract of a learner


@pytest.mark.parametrize("learner", [BRIEF, GradientLearner(hidden=(8,), steps=20)], ids=lambda one: one.name)
def test_the_learners_of_the_package_keep_the_contract(learner: GraphLearner) -> None:
    check_learner(learner)


def test_gradients_find_the_edges_of_navigation_too(data: Transitions) -> None:
    rows = TASK.collect(2_000, seed=1).rows
    graph = learn_graph(data, learner=GradientLearner(hidden=(64, 64), steps=600))
    truth, probability = TASK.graph.mask(rows), graph.edge_probability(rows)
    assert graph.caution == 0.5
    assert roc_auc_score(truth.flatten().numpy(), probability.flatten().numpy()) > 0.95


@dataclass(frozen=True)
class Near(GraphLearner):
    """An edge is present where the first columns of two factors are near each other."""

    name = "near"
    caution = 0.5

    within: float = 0.5

    def learn(
        self, data: Transitions, graph: LocalGraph, always: Tensor, never: Tensor, stream: Stream, progress: Progress
    ) -> dict[str, Tensor]:
        return {"always": always, "never": never}

    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        first = rows[:, [columns[0] for columns in graph.factors.values()]]
        near = (first[:, :, None] - first[:, None, : len(graph.children)]).abs() < self.within
        return near.float()


def test_a_learner_of_the_users_own_is_one_class(monkeypatch: pytest.MonkeyPatch, data: Transitions) -> None:
    check_learner(Near())
    monkeypatch.setattr(LEARNERS, "data", dict(LEARNERS))
    LEARNERS.add(Near)
    check_learner(Near(within=0.2))
    graph = learn_graph(data, learner="near")
    near = (data.state[:, 0] - data.state[:, 1]).abs() < 0.5
    assert graph.mask(data.rows)[:, 0, 1].equal(near | ("x" in graph.edges["y"]))


class Greedy(Near):
    def learn(self, data: Transitions, *given: Any) -> dict[str, Tensor]:
        data.next_state[:, 0] += 1
        return super().learn(data, *given)


class Certain(Near):
    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        return 2 * super().probability(tensors, graph, rows)


class Turned(Near):
    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        return super().probability(tensors, graph, rows).transpose(1, 2)


class Relative(Near):
    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        return super().probability(tensors, graph, rows - rows.mean(0)) * rows[:, 0].mean().sigmoid()


class Extra(Near):
    def learn(self, data: Transitions, *given: Any) -> dict[str, Tensor]:
        return {**super().learn(data, *given), "extra": torch.zeros(2)}


class Forgetful(Extra):
    fits: ClassVar[Iterator[int]] = itertools.count()

    def learn(self, data: Transitions, *given: Any) -> dict[str, Tensor]:
        return {**Near.learn(self, data, *given), "extra": torch.tensor(float(next(self.fits)))}

    def expected(self, graph: LocalGraph) -> dict[str, Tensor]:
        return {**super().expected(graph), "extra": torch.empty(())}

    def probability(self, tensors: Weights, graph: LocalGraph, rows: Tensor) -> Tensor:
        return super().probability(tensors, graph, rows) / (2 + tensors["extra"])


class Never(Near):
    def learn(self, data: Transitions, *given: Any) -> dict[str, Tensor]:
        learned = super().learn(data, *given)
        return {**learned, "always": ~learned["always"]}


class Borrowed(Near):
    name = "gates"


class Careless(Near):
    caution = 2.0


BROKEN = (Greedy, Certain, Turned, Relative, Extra, Forgetful, Never, Borrowed, Careless)


@pytest.mark.parametrize("learner", BROKEN, ids=lambda learner: learner.__name__)
def test_a_broken_learner_is_told_what_it_breaks(learner: type[GraphLearner]) -> None:
    with refused():
        check_learner(learner())


# --- the command line


def test_the_command_line_learns_draws_and_explains(
    data: Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GateLearner, "quick", staticmethod(lambda: BRIEF))
    table, file = tmp_path / "data.hdf5", tmp_path / "learned.graph"
    data.save(table)
    (tmp_path / "factors.toml").write_text('[state]\nplace = ["x", "y"]\n[action]\nmove = "0:2"\n')
    learned = run("graph", table, "--learn", "--quick", "--out", file)
    assert (learned.code, learned.err) == (0, "")
    assert "Which factors depend on which" in learned.out
    assert f"Written to {file}" in learned.out
    assert run("graph", file, "--data", table, "--out", tmp_path / "graph.png").code == 0
    rules = run("graph", table, "--graph", file, "--explain", "--out", tmp_path / "rules.toml")
    assert rules.code == 0
    load_graph(tmp_path / "rules.toml", data)
    by_file = run(
        "graph", table, "--learn", "--quick", "--factors", tmp_path / "factors.toml", "--out", tmp_path / "two.graph"
    )
    assert by_file.code == 0
    assert load_graph(tmp_path / "two.graph").parents == ("place", "move")
    simple = ("--learner", "gradient", "--steps", 5, "--hidden", 8, 8, "--caution", 0.3)
    assert run("graph", table, "--learn", *simple, "--out", tmp_path / "simple.graph").code == 0
    by_gradients = load_graph(tmp_path / "simple.graph")
    assert isinstance(by_gradients, LearnedGraph) and by_gradients.caution == 0.3
    assert by_gradients.learner == GradientLearner(hidden=(8, 8), steps=5)
    apart(1_000, gap=3.0).save(tmp_path / "strangers.hdf5")
    warned = run("graph", tmp_path / "strangers.hdf5", "--learn", "--quick", "--out", tmp_path / "safe.graph")
    assert warned.code == 0 and "Warning: never near each other in the data: a/b." in warned.out
    again = run("graph", table, "--learn", "--quick", "--out", file)
    assert again.code == 2
    assert "Write to another one, or pass --overwrite." in again.err


@pytest.mark.long
def test_four_objects_are_learned_within_minutes() -> None:
    task = mocoda.make_task("objects:4")
    graph = learn_graph(task.collect(40_000, seed=0), seed=0)
    rows = task.collect(4_000, seed=1).rows
    truth, probability = task.graph.mask(rows).flatten().numpy(), graph.edge_probability(rows).flatten().numpy()
    assert roc_auc_score(truth, probability) >= 0.99


# --- the dense model


def followers(rows: int, seed: int) -> Transitions:
    """Two bodies on a line: `b` keeps up with `a` while `a` is ahead of it, smoothly, in half of the rows."""
    stream = Stream(seed, "followers")
    state, push = stream.uniform(rows, 2, low=-1.0), stream.uniform(rows, 1, low=-1.0)
    ahead = (state[:, :1] - state[:, 1:]).clamp(min=0)
    next_state = state + torch.cat([0.1 * push, 0.2 * ahead], 1)
    return Transitions(state, push, next_state, columns=("a.x", "b.x", "push"))


def mask_of_followers(rows: Tensor) -> Tensor:
    mask = torch.tensor([[True, False], [False, True], [True, False]]).repeat(len(rows), 1, 1)
    mask[:, 0, 1] = rows[:, 0] > rows[:, 1]
    return mask


@pytest.fixture(scope="module")
def dense() -> DenseModel:
    data, names = followers(3_000, 0), ("a", "b", "push")
    graph = LocalGraph({"a": 0, "b": 1}, {"push": 0}, dict.fromkeys(names[:2], names))
    table = Table.of(data, graph, Stream(0, "dense"))
    return DenseModel.fit(table, GateLearner(runs=2, hidden=32, steps=400), silent)


def test_a_dense_model_says_which_edges_make_false_rows(dense: DenseModel) -> None:
    alone = torch.tensor([[True, False], [False, True], [True, False]])
    unpushed = torch.eye(3, 2, dtype=torch.bool)
    assert float(dense.false_share(mask_of_followers)[0].max()) < MAX_FALSE
    missing, _ = dense.false_share(lambda rows: alone.expand(len(rows), -1, -1))
    assert float(missing[0]) < MAX_FALSE and float(missing[1]) > 0.3
    assert float(dense.false_share(lambda rows: unpushed.expand(len(rows), -1, -1))[0][0]) > 0.5


def test_a_missing_edge_is_noticed_though_new_rows_are_far_from_recorded_ones() -> None:
    near, stream = followers(2_000, 0), Stream(0, "places")
    place = stream.uniform(2_000, 1) + 0.01 * stream.normal(2_000, 6)  # where both were recorded
    state, next_state = (torch.cat([x, place], 1) for x in (near.state, near.next_state))
    factors = {"a": [0, 2, 3, 4], "b": [1, 5, 6, 7]}
    graph = LocalGraph(factors, {"push": 0}, dict.fromkeys(factors, ("a", "b", "push")))
    table = Table.of(Transitions(state, near.action, next_state), graph, Stream(0, "dense"))
    model = DenseModel.fit(table, GateLearner(runs=1, hidden=32, steps=300), silent)
    alone = torch.tensor([[True, False], [False, True], [True, False]])
    missing, guessed = model.false_share(lambda rows: alone.expand(len(rows), -1, -1))
    rows = table.rows[table.held_out]
    behind = (rows[:, :1] - rows[:, 1:2]).clamp(min=0)[:, 0]
    truly_false = (behind - behind.roll(1)).abs() > 0.1 * behind.std()
    assert float(truly_false.float().mean()) > 0.05 and float(missing[1]) > 0.05 and bool(guessed[1])


def test_a_dense_model_says_which_parent_acts_in_which_row_and_which_always(dense: DenseModel) -> None:
    rows, moved = dense.redrawn()
    ahead = mask_of_followers(dense.table.rows[rows])[:, 0, 1]
    acts, share = moved[1, :, 0] >= MIN_MOVED, moved.mean(1) / REDRAWS
    assert float((acts & ahead).sum() / ahead.sum()) > 0.9 and float((acts & ahead).sum() / acts.sum()) > 0.8
    assert [float(share[0, p]) > BASELINE_SHARE for p in (1, 2)] == [False, True]
    assert float(share[1, 0]) < BASELINE_SHARE and float(share[1, 2]) < 0.1


@pytest.fixture
def hopeless(monkeypatch: pytest.MonkeyPatch) -> GateLearner:
    """A learner whose gates find nothing at first."""

    def weights_of(layout: Layout, runs: int, hidden: int, stream: Stream) -> dict[str, Tensor]:
        weights = gate_weights(layout, runs, hidden, stream)
        weights["sum.2.bias"] -= 60.0
        return weights

    monkeypatch.setattr("mocoda.graph.learning.gates.gate_weights", weights_of)
    return GateLearner(hidden=32, baseline_steps=50, steps=400)


def test_gates_that_find_nothing_learn_again_from_the_dense_model(hopeless: GateLearner) -> None:
    graph, rows = learn_graph(followers(3_000, 0), seed=0, learner=hopeless), followers(1_000, 1).rows
    assert graph.edges == {"a": ("a", "push"), "b": ("b",)}
    assert float(graph.mask(rows)[rows[:, 0] > rows[:, 1] + 0.1, 0, 1].float().mean()) > 0.98


def test_where_all_recombined_rows_are_far_from_recorded_ones_a_child_keeps_all_edges(
    hopeless: GateLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mocoda.graph.learning.dense.NEAR_QUANTILE", 0.0)
    assert learn_graph(followers(3_000, 0), seed=0, learner=hopeless).edges["b"] == ("a", "b", "push")


def test_where_no_edges_make_true_rows_a_child_keeps_all(monkeypatch: pytest.MonkeyPatch, data: Transitions) -> None:
    monkeypatch.setattr("mocoda.graph.learning.gates.MAX_FALSE", -1.0)
    graph = learn_graph(data, learner=BRIEF)
    assert graph.edges == dict.fromkeys(("x", "y"), ("x", "y", "dx", "dy"))
    strangers = learn_graph(apart(1_000, gap=3.0), unseen="apart", learner=BRIEF)
    assert strangers.edges == {"a": ("a", "push"), "b": ("b", "push")}


def test_smooth_interactions_over_a_distance_are_found() -> None:
    graph = learn_graph(
        followers(3_000, 0), seed=0, learner=GateLearner(runs=1, hidden=32, baseline_steps=200, steps=400)
    )
    rows = followers(1_000, 1).rows
    acts = rows[:, 0] > rows[:, 1] + 0.1
    assert graph.edges["a"] == ("a", "push")
    assert bool(graph.mask(rows)[acts, 0, 1].float().mean() > 0.98)
    assert float(graph.shares(rows)[2, 1]) < 0.1


def test_among_many_factors_no_other_is_taken_for_a_baseline_parent() -> None:
    task = RandomDag(10)  # each factor needs itself, and others in 1 to 7% of the rows
    data, graph = task.collect(2_000, seed=0), task.graph
    everyone = LocalGraph(graph.state, graph.action, dict.fromkeys(graph.children, graph.parents))
    model = DenseModel.fit(Table.of(data, everyone, Stream(0, "test")), GateLearner(runs=1, steps=100), silent)
    share = model.redrawn().moved.mean(1) / REDRAWS
    assert float(share[~model.table.itself].max()) < BASELINE_SHARE
