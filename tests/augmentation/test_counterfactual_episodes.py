"""Counterfactual episodes: what the simulator would have done, to the last step, and where they had to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transition_tables import refusal, walks

import mocoda
from mocoda import LocalGraph, Transitions
from mocoda.augmentation import augment_episodes
from mocoda.augmentation.episode_walks import ENDED, LINKED, LONG, MET, donor_names
from mocoda.data.transitions import concatenate
from mocoda.engine.randomness import as_stream
from mocoda.tasks import make_task

DATA = {name: make_task(name).collect(rows, seed=0) for name, rows in (("navigation", 600), ("objects:3", 1500))}
quick = settings(max_examples=15, deadline=None)


def made_of(name: str, **options: Any) -> Transitions:
    return augment_episodes(DATA[name], make_task(name).graph, **({"episodes": 30, "keep_recorded": False} | options))


# --- the law


@quick
@given(st.sampled_from(["navigation", "objects:3"]), st.integers(0, 10**6), st.sampled_from([None, 2, 7]))
def test_the_simulator_does_the_same_step_by_step_to_the_last_one(name: str, seed: int, length: int | None) -> None:
    task = make_task(name)
    made = made_of(name, seed=seed, length=length)
    assert len(walks(made)) == 30
    for rows in walks(made).values():
        episode = made[rows]
        assert len(episode) >= 2
        state = episode.state[:1]
        for step in range(len(episode)):
            assert state.equal(episode.state[step : step + 1])
            state = task.step(torch.cat([state, episode.action[step : step + 1]], 1))
        assert state.equal(episode.next_state[-1:])


def donors_of(made: Transitions, graph: LocalGraph) -> dict[str, list[tuple[int, int]]]:
    """For every factor, the recorded episode and step that it is of, row by row."""
    return {
        name: list(zip(made.provenance[donor].tolist(), made.provenance[at].tolist(), strict=True))
        for name, (donor, at) in zip(graph.parents, donor_names(graph), strict=True)
    }


@pytest.mark.parametrize("name", ["navigation", "objects:3"])
def test_provenance_tells_where_every_number_comes_from(name: str) -> None:
    data, graph = DATA[name], make_task(name).graph
    made = made_of(name)
    where = {place: row for row, place in enumerate(places(data))}
    donors = donors_of(made, graph)
    for row in range(len(made)):
        assert len({donors[factor][row][0] for factor in graph.parents}) == 2
        for factor, columns in graph.factors.items():
            origin = where[donors[factor][row]]
            assert made.rows[row, list(columns)].equal(data.rows[origin, list(columns)])
            if factor in graph.children:
                assert made.next_state[row, list(columns)].equal(data.next_state[origin, list(columns)])


# --- how far


def may(graph: LocalGraph, base: Tensor, donor: Tensor, factors: list[str]) -> tuple[bool, bool]:
    """Whether two rows (1, columns) leave the factors unconnected, and whether the row made of both does."""
    columns = list(graph.columns(factors))
    new = base.clone()
    new[:, columns] = donor[:, columns]
    apart = []
    for row in (base, donor, new):
        mask = graph.mask(row)[0]
        edges = [(p, c) for i, p in enumerate(graph.parents) for j, c in enumerate(graph.children) if mask[i, j]]
        apart.append(all((p in factors) == (c in factors) for p, c in edges))
    return apart[0] and apart[1], apart[2]


@pytest.mark.parametrize("length", [None, 6])
@pytest.mark.parametrize("name", ["navigation", "objects:3"])
def test_an_episode_goes_on_until_something_stops_it_and_says_what(name: str, length: int | None) -> None:
    data, graph = DATA[name], make_task(name).graph
    made = made_of(name, episodes=60, length=length)
    where = {place: row for row, place in enumerate(places(data))}
    seen = set()
    for rows in walks(made).values():
        donors = donors_of(made[rows], graph)
        cut = int(made.provenance["cut"][rows[0]])
        seen.add(cut)
        reasons = []
        first = donors[graph.parents[0]][0][0]
        factors = [factor for factor in graph.parents if donors[factor][0][0] != first]
        for end, beyond in ((-1, 1), (0, -1)):
            after = []
            for factor in (graph.parents[0], factors[0]):  # one of each recorded episode
                (episode, step), rests = donors[factor][end], donors[factor][0] == donors[factor][-1]
                after.append((episode, step + (0 if rests else beyond)))
            if not all(place in where for place in after):
                reasons.append(ENDED)
                continue
            apart, fits = may(graph, data.rows[[where[after[0]]]], data.rows[[where[after[1]]]], factors)
            reasons.append(LINKED if not apart else MET if not fits else LONG)
        assert cut == reasons[0]
        assert len(rows) == length if LONG in reasons else length is None or len(rows) <= length
    assert seen >= ({ENDED, LINKED, MET} if name == "objects:3" else {ENDED}) and (LONG in seen) == (length is not None)
    assert {int(why) for why, one in made.source["cut"].items() if one["episodes"]} == seen


def lying(steps: int, place: float, shiver: float) -> Transitions:
    """A hand that walks, and a cube that lies where it is but for the last digits."""
    hand = torch.arange(steps + 1.0)
    cube = place + shiver * torch.arange(steps + 1.0).remainder(2)
    state = torch.stack([hand, cube], 1)
    return Transitions(state[:-1], torch.ones(steps, 1), state[1:], episode=torch.zeros(steps, dtype=torch.long))


@pytest.mark.parametrize("shiver", [0.0, 1e-6])
def test_what_rests_in_a_short_episode_rests_for_all_of_a_long_one(shiver: float) -> None:
    graph = LocalGraph({"hand": [0], "cube": [1]}, {"push": [0]}, {"hand": ["hand", "push"], "cube": ["cube"]})
    data = concatenate([lying(30, 1.0, shiver), lying(4, 2.0, shiver)])

    def longest(resting: float) -> Transitions:
        made = augment_episodes(data, graph, episodes=40, keep_recorded=False, resting=resting)
        rows = max(walks(made).values(), key=len)
        return made[rows]

    rested = longest(1e-5)
    assert len(rested) == 30 and rested.state[1:].equal(rested.next_state[:-1])
    assert len(rested.state[:, 1].unique()) == 1 and abs(float(rested.state[0, 1]) - 2) < 1e-5
    assert len(rested.provenance["donor_step_cube"].unique()) == 1
    assert len(longest(0.0)) == (4 if shiver else 30)


def test_length_is_the_most_steps_and_cuts_anywhere() -> None:
    made = made_of("objects:3", length=5, episodes=100)
    lengths = torch.tensor([len(rows) for rows in walks(made).values()])
    assert int(lengths.max()) == 5 and int(lengths.min()) >= 2
    cut = torch.tensor([int(made.provenance["cut"][rows[0]]) for rows in walks(made).values()])
    assert bool((lengths[cut == LONG] == 5).all()) and int((cut == LONG).sum()) > 50


def test_missing_steps_end_an_episode_and_the_order_of_rows_does_not_matter() -> None:
    data = DATA["objects:3"]
    assert data.step is not None
    holed = data[data.step % 10 != 9]
    graph = make_task("objects:3").graph
    made = augment_episodes(holed, graph, episodes=40, keep_recorded=False)
    assert max(len(rows) for rows in walks(made).values()) <= 9
    order = as_stream(0, device="cpu").permutation(len(holed))
    assert augment_episodes(holed[order], graph, episodes=40, keep_recorded=False).rows.equal(made.rows)


def test_a_factor_goes_with_its_next_value_even_if_it_does_not_depend_on_it() -> None:
    """The next x is the move: nothing links x and its next value, and yet an episode has one x."""
    graph = LocalGraph(state={"x": 0, "y": 1}, action={"dx": 0, "dy": 1}, edges={"x": ["dx"], "y": ["dy"]})
    action = as_stream(0, device="cpu").uniform(40, 2)
    state = torch.cat([torch.zeros(4, 1, 2), action.unflatten(0, (4, 10))[:, :-1]], 1).flatten(0, 1)
    data = Transitions(state, action, action, episode=torch.arange(40) // 10)
    made = augment_episodes(data, graph, episodes=20, keep_recorded=False)
    for rows in walks(made).values():
        assert made.next_state[rows[:-1]].equal(made.state[rows[1:]])
        assert made.next_state[rows].equal(made.action[rows])


def test_a_local_rule_is_never_asked_about_no_rows() -> None:
    def rule(rows: Tensor) -> Tensor:
        assert len(rows) > 0
        mask: Tensor = make_task("navigation").graph.mask(rows)
        return mask

    graph = LocalGraph({"x": 0, "y": 1}, {"dx": 0, "dy": 1}, {"x": ["x", "dx"], "y": ["y", "dy"]}, local=rule)
    made = augment_episodes(DATA["navigation"], graph, episodes=30, keep_recorded=False)
    assert made.rows.equal(made_of("navigation").rows)


# --- the table


def test_recorded_rows_come_first_with_their_own_episodes() -> None:
    task, data = make_task("navigation"), DATA["navigation"]
    made = augment_episodes(data, task.graph, episodes=10, task=task)
    new = augment_episodes(data, task.graph, episodes=10, task=task, keep_recorded=False)
    first, rest = made[: len(data)], made[len(data) :]
    assert first.rows.equal(data.rows) and places(first) == places(data)
    assert rest.rows.equal(new.rows)
    assert data.episode is not None and rest.episode is not None and new.episode is not None
    assert rest.episode.equal(new.episode + int(data.episode.max()) + 1)
    assert set(first.provenance["recipe"].tolist()) == {0} and set(rest.provenance["recipe"].tolist()) == {2}
    assert made.reward is not None and data.reward is not None and made.reward[: len(data)].equal(data.reward)
    reward, terminal = task.label(rest.state, rest.action, rest.next_state)
    assert rest.reward is not None and rest.reward.equal(reward) and rest.terminal.equal(terminal)
    again = augment_episodes(data, task.graph, episodes=10, task=task)
    assert again.rows.equal(made.rows) and again.source == made.source
    assert not augment_episodes(data, task.graph, episodes=10, seed=1)[len(data) :].rows.equal(rest.rows)
    assert (
        augment_episodes(made, task.graph, episodes=5, task=task)
        .provenance["recipe"][: len(made)]
        .equal(made.provenance["recipe"])
    )


def test_an_episode_is_about_one_goal() -> None:
    task = make_task("hooksweep2")
    walk = as_stream(0, device="cpu").uniform(4, 11, 16)
    action = torch.zeros(40, 4)
    graph = LocalGraph(
        state={"gripper": slice(0, 6), "box1": slice(6, 11), "box2": slice(11, 16)},
        action={"action": slice(0, 4)},
        edges={"gripper": ["gripper", "action"], "box1": ["box1"], "box2": ["box2"]},
    )
    data = Transitions(walk[:, :-1].flatten(0, 1), action, walk[:, 1:].flatten(0, 1), episode=torch.arange(40) // 10)
    made = augment_episodes(data, graph, episodes=6, task=task)
    assert made.goal is not None
    goals = [made.goal[rows].unique(dim=0) for rows in walks(made).values()]
    assert [len(goal) for goal in goals] == [1] * 10
    assert len(torch.cat(goals).unique(dim=0)) == 10


def test_new_episodes_are_episodes_in_a_minari_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = mocoda.augment_episodes(DATA["objects:3"], make_task("objects:3").graph, episodes=12)
    mocoda.write(made, "minari:made-v0")
    assert minari.load_dataset("made-v0").total_episodes == len(walks(made)) == 30 + 12
    assert places(mocoda.read("minari:made-v0")) == places(made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"recipe": "codi"},
            "there is no recipe 'codi'; there are: emp, coda, dyna, rand, mocoda, mocoda-u, mocoda-p. Did you mean "
            "'coda'?",
        ),
        ({"episodes": 0}, "episodes must be at least 1, the number of episodes to make, got 0."),
        ({"resting": 1.5}, "resting must be 0 or a small share of a column's largest number, got 1.5."),
        ({"length": 1}, "length must be at least 2, the most steps of an episode, got 1."),
    ],
)
def test_what_makes_no_episodes_is_refused(options: dict[str, Any], message: str) -> None:
    assert refusal(lambda: made_of("navigation", **options)) == message


def test_rows_without_episodes_or_of_one_are_refused() -> None:
    data, graph = DATA["navigation"], make_task("navigation").graph
    unknown = Transitions(data.state, data.action, data.next_state)
    assert refusal(lambda: augment_episodes(unknown, graph, episodes=1)) == (
        "nobody knows which episodes these rows are of. Read them from a file that marks the ends of episodes, or pass "
        "Transitions(..., episode=)."
    )
    assert refusal(lambda: augment_episodes(data[:5], graph, episodes=1)) == (
        "new episodes are made of two recorded ones or more, and these rows are of fewer."
    )
    apart = Transitions(data.state, data.action, data.next_state + 1, episode=data.episode)
    assert refusal(lambda: augment_episodes(apart, graph, episodes=1)) == (
        "in no episode is a row's next state the state of the next step, to the bit, so that no two steps follow one "
        "another. Are steps missing, or are next states recorded apart?"
    )
    everything = LocalGraph(graph.state, graph.action, {"x": ["x", "dx", "y", "dy"], "y": ["x", "y", "dx", "dy"]})
    assert refusal(lambda: augment_episodes(data, everything, episodes=3)) == (
        "recipe 'coda' found 0 of 3 episodes in 1,000 attempts: in these episodes the local graphs connect everything, "
        "or leave nothing unconnected for 2 steps."
    )


def places(data: Transitions) -> list[tuple[int, int]]:
    assert data.episode is not None and data.step is not None
    return list(zip(data.episode.tolist(), data.step.tolist(), strict=True))
