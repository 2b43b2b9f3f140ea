"""Learned graphs: what is found in data with known edges, and that a learned graph is a graph like any other."""

from __future__ import annotations

import json
import re
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import mocoda as run
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

import mocoda
from experiments.random_dag import RandomDag
from mocoda import GraphConfig, InputError, LearnedGraph, Transitions, learn_graph, load_graph
from mocoda.cli.graph import Graph
from mocoda.engine.progress import silent
from mocoda.engine.randomness import Stream
from mocoda.graph.explain import explain, rules_as_toml
from mocoda.graph.gates import Gates, Layout, gate_weights
from mocoda.graph.learned import CAUTION
from mocoda.graph.local_graph import LocalGraph
from mocoda.graph.meetings import never_met
from mocoda.graph.usual import Table, usual_parents

TASK = mocoda.make_task("navigation")
BRIEF = GraphConfig(runs=1, hidden=16, usual_steps=4, steps=4, batch=16)


@pytest.fixture(scope="module")
def data() -> Transitions:
    return TASK.collect(3_000, seed=0)


@pytest.fixture(scope="module")
def graph(data: Transitions) -> LearnedGraph:
    return learn_graph(data, seed=0, config=GraphConfig(runs=1, hidden=32, usual_steps=200, steps=500))


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

    monkeypatch.setattr("mocoda.graph.learning.gate_weights", hopeless_at_first)
    graph = learn_graph(data, seed=0, config=GraphConfig(runs=1, hidden=32, usual_steps=200, steps=500))
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
    graph = learn_graph(data, {"b": 0, "a": 1}, {"d": 0, "c": 1}, unseen="apart", config=BRIEF)
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
    stream, names = Stream(seed, "bodies"), [f"f{i}" for i in range(children)]
    actions = {f"a{i}": i for i in range(acts)}
    graph = LocalGraph({name: i for i, name in enumerate(names)}, actions, {name: [name] for name in names})
    size = (children + acts, children)
    always = (stream.uniform(*size) < 0.3) | torch.eye(*size).bool()
    never, plain, chance = (stream.uniform(*size) < 0.2) & ~always, torch.zeros(size).bool(), stream.uniform(5, *size)
    own = torch.eye(*size).bool()  # actions that always move nothing have no bodies
    as_found = Gates(graph, {}, {}, torch.tensor([1.0, 0.0]), own, plain).calibrated(chance)
    found = Gates(graph, {}, {}, torch.tensor([1.0, 0.0]), always, never).calibrated(chance)
    for p in range(children + acts):
        for c in range(children):
            others = range(children, children + acts) if p < children else ()
            through = [a for a in others if always[a, p] and not always[a, c]]
            wanted = torch.stack([as_found[:, a, c] for a in (p, *through)]).amax(0)
            wanted = torch.ones(5) if always[p, c] else torch.zeros(5) if never[p, c] else wanted
            assert torch.allclose(found[:, p, c], wanted, atol=0.02)


def test_the_same_seed_learns_the_same_graph_and_another_one_another(data: Transitions) -> None:
    one, same, other = (learn_graph(data, seed=seed, config=BRIEF) for seed in (1, 1, 2))
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


def refused(message: str, *args: object, **options: object) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        learn_graph(*args, **options)  # type: ignore[arg-type]


def test_factors_must_cover_every_column_once(data: Transitions) -> None:
    refused("the state column 'y' belongs to no factor; name one for it in state.", data, {"x": 0})
    refused(
        "the state column 'x' is claimed by both 'x' and 'both'; a column has one factor.",
        data,
        {"x": 0, "both": slice(0, 2)},
    )


def test_too_few_rows_are_refused(data: Transitions) -> None:
    refused(
        "a graph is learned from at least 1,000 rows, and far more where interactions are rare; the data has 999. "
        "Record more, or write the graph in a file.",
        data[:999],
    )


def test_a_constant_factor_is_refused(data: Transitions) -> None:
    state = torch.cat([data.state, torch.ones(len(data), 1)], 1)
    next_state = torch.cat([data.next_state, torch.ones(len(data), 1)], 1)
    still = Transitions(state, data.action, next_state, columns=("x", "y", "lamp", "dx", "dy"))
    refused(
        "the factor 'lamp' has the same value in all rows, so nothing can be learned of what depends on it. Remove its "
        "columns, or make them part of another factor.",
        still,
    )


def test_factors_that_never_meet_are_what_the_user_says() -> None:
    strangers = apart(1_000, gap=3.0)
    refused(
        "these factors never come near each other in the data, so nothing can be learned of what happens if they do: "
        "a and b. Say whether they depend on each other (unseen='linked', or --unseen linked) or not (unseen='apart').",
        strangers,
        config=BRIEF,
    )
    linked = learn_graph(strangers, unseen="linked", config=BRIEF)
    assert "b" in linked.edges["a"]
    assert "a" in linked.edges["b"]
    kept = learn_graph(strangers, unseen="apart", config=BRIEF)
    assert not bool(kept.mask(strangers.rows)[:, 1, 0].any())
    assert not bool(kept.mask(strangers.rows)[:, 0, 1].any())


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
        (("a.x", "a.open", "b.speed", "b.open"), False),  # no place, but something of one kind
        (("a.angle", "b.open"), False),  # nothing to compare
    ],
)
def test_factors_meet_where_columns_of_one_kind_are_near(names: tuple[str, ...], apart: bool) -> None:
    assert bool(never_met(*columns_of(*names))[0, 1]) is apart


def test_columns_without_names_are_compared_if_factors_have_as_many() -> None:
    state = torch.linspace(0, 1, 100)[:, None] + torch.tensor([0.0, 0.0, 5.0, 5.0, 9.0])
    data = Transitions(state, torch.zeros(100, 1), state)
    graph = LocalGraph({"a": [0, 1], "b": [2, 3], "c": [4]}, {"push": [0]}, {"a": ["a"], "b": ["b"], "c": ["c"]})
    assert never_met(data, graph)[:3].tolist() == [[False, True, False], [True, False, False], [False] * 3]


def test_columns_without_names_need_factors(data: Transitions) -> None:
    nameless = Transitions(data.state, data.action, data.next_state)
    refused(
        "the data does not name its 2 state columns, so nothing says which of them belong to one object. Say so: "
        'state={"cart": slice(0, 2), ...}, or a TOML file with [state] and [action] (--factors).',
        nameless,
        config=BRIEF,
    )
    assert learn_graph(nameless, {"x": 0, "y": 1}, config=BRIEF).action == {"action": (0, 1)}


def test_options_out_of_range_are_refused(data: Transitions) -> None:
    refused("caution must be a probability between 0 and 1, got 1.5.", data, caution=1.5)
    refused("unseen must be 'linked' or 'apart', got 'maybe'.", data, unseen="maybe")
    with pytest.raises(InputError, match=r"^steps must be at least 1, got 0\.$"):
        GraphConfig(steps=0)


def test_rows_with_nan_never_get_here(data: Transitions) -> None:
    state = data.state.numpy().copy()
    state[7, 0] = np.nan
    with pytest.raises(InputError, match=r"state has NaN or inf in 1 of 3000 rows, first in row 7\."):
        Transitions(state, data.action, data.next_state)


def test_damaged_files_and_other_columns_are_refused(graph: LearnedGraph, data: Transitions, tmp_path: Path) -> None:
    file = tmp_path / "learned.graph"
    graph.save(file)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    damaged = tmp_path / "damaged.graph"
    damaged.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_graph(damaged, data)
    assert str(error.value) == (
        f"cannot read learned graph {str(damaged)!r}: its contents have changed since it was written. Learn a graph "
        "and save it with `graph.save(path)`."
    )
    renamed = Transitions(data.state, data.action, data.next_state, columns=("u", "v", "dx", "dy"))
    with pytest.raises(InputError) as error:
        load_graph(file, renamed)
    assert str(error.value) == (
        f"{str(file)!r} was learned from data with the state columns x, y; this data has u, v. Learn a graph from this "
        "data, or give the columns the same names in the same order."
    )
    with pytest.raises(InputError, match="needs the data"):
        load_graph(tmp_path / "graph.toml")


# --- the command line


def test_the_command_line_learns_draws_and_explains(
    data: Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphConfig, "quick", staticmethod(lambda: BRIEF))
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


def test_the_command_line_is_as_cautious_as_python() -> None:
    assert Graph(file="data.hdf5").caution == CAUTION == signature(learn_graph).parameters["caution"].default


def test_among_many_factors_none_is_taken_for_a_usual_parent_that_is_none() -> None:
    task = RandomDag(10)  # each factor needs itself, and others in 1 to 7% of the rows
    data, graph = task.collect(8_000, seed=0), task.graph
    dense = LocalGraph(graph.state, graph.action, dict.fromkeys(graph.children, graph.parents))
    table = Table.of(data, dense, Stream(0, "test-usual"))
    assert usual_parents(table, GraphConfig(runs=1), silent).equal(table.itself)
