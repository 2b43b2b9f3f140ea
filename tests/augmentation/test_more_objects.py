"""More objects than were recorded: true rows in every role, from whole episodes, and no longer than they can be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transition_tables import refusal, walks

from mocoda import LocalGraph, Transitions, add_objects, augment_episodes
from mocoda.augmentation.episode_walks import donor_names
from mocoda.tasks import make_task

TASKS = {count: make_task(f"objects:{count}") for count in (2, 3, 5)}
DATA = {count: TASKS[count].collect(600, seed=0) for count in (2, 3)}


def names(count: int) -> list[str]:
    return [f"object{number + 1}" for number in range(count)]


def made_of(few: int, many: int, seed: int = 0) -> Transitions:
    return add_objects(DATA[few], TASKS[few].graph, TASKS[many].graph, names(many), seed=seed)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([(2, 3), (2, 5), (3, 5)]), st.integers(0, 10**6))
def test_every_row_is_what_the_bigger_world_s_simulator_does(counts: tuple[int, int], seed: int) -> None:
    made = made_of(*counts, seed=seed)
    assert TASKS[counts[1]].step(made.rows).equal(made.next_state)
    for rows in walks(made).values():
        assert len(rows) >= 2 and made.state[rows][1:].equal(made.next_state[rows][:-1])
    assert made.columns == TASKS[counts[1]].columns


@pytest.mark.parametrize("counts", [(2, 3), (3, 5)])
def test_provenance_tells_which_recorded_object_has_which_role(counts: tuple[int, int]) -> None:
    few, many = counts
    data, small, big = DATA[few], TASKS[few].graph, TASKS[many].graph
    made = made_of(few, many)
    assert data.episode is not None and data.step is not None
    where = {place: row for row, place in enumerate(zip(data.episode.tolist(), data.step.tolist(), strict=True))}
    roles = set()
    for row in range(len(made)):
        origin = {
            name: where[int(made.provenance[donor][row]), int(made.provenance[at][row])]
            for name, (donor, at) in zip(big.parents, donor_names(big), strict=True)
        }
        base = origin["move"]
        assert origin["agent"] == base and sum(origin[name] == base for name in names(many)) == few
        for name in names(many):
            value = made.rows[row, list(big.factors[name])]
            same = [own for own in names(few) if value.equal(data.rows[origin[name], list(small.factors[own])])]
            assert len(same) == 1
            assert origin[name] == base or int(data.episode[origin[name]]) != int(data.episode[base])
            roles.add((name, origin[name] == base))
    assert roles == {(name, there) for name in names(many) for there in (True, False)}


def fits(
    data: Transitions, big: LocalGraph, new: Tensor, parts: dict[str, tuple[int, str]], base: int, few: int
) -> bool:
    """Whether a row (1, S + A) of these recorded rows and factors links all as recorded, and what is added nowhere."""
    small = TASKS[few].graph
    found = big.mask(new)[0]
    for c, child in enumerate(big.children):
        row, own = parts[child]
        recorded = small.mask(data.rows[[row]])[0]
        links = {small.parents[p] for p in range(len(small.parents)) if recorded[p, small.children.index(own)]}
        if row != base and (links != {own} or recorded[small.parents.index(own)].sum() != 1):
            return False
        for p, parent in enumerate(big.parents):
            together = parts[parent][0] == row
            if bool(found[p, c]) != (together and parts[parent][1] in links):
                return False
    return True


def test_an_episode_is_as_long_as_what_was_added_lets_it() -> None:
    few, many = 2, 5
    data, small, big = DATA[few], TASKS[few].graph, TASKS[many].graph
    made, stopped = made_of(few, many), 0
    assert data.episode is not None and data.step is not None
    where = {place: row for row, place in enumerate(zip(data.episode.tolist(), data.step.tolist(), strict=True))}
    for rows in walks(made).values():
        one = made[rows]
        donors = {
            name: (one.provenance[d].tolist(), one.provenance[s].tolist())
            for name, (d, s) in zip(big.parents, donor_names(big), strict=True)
        }
        for end, beyond in ((0, -1), (-1, 1)):
            places = {name: (episode[end], step[end] + beyond) for name, (episode, step) in donors.items()}
            if any(place not in where for place in places.values()):
                continue
            parts = {}
            for name in big.parents:
                now = where[donors[name][0][end], donors[name][1][end]]
                value = one.rows[end, list(big.factors[name])]
                kinds = [name] if name not in names(many) else names(few)
                kind = next(k for k in kinds if value.equal(data.rows[now, list(small.factors[k])]))
                parts[name] = (where[places[name]], kind)
            new = torch.empty(1, big.width)
            for name, (row, kind) in parts.items():
                new[0, list(big.factors[name])] = data.rows[row, list(small.factors[kind])]
            assert not fits(data, big, new, parts, parts["move"][0], few)
            stopped += 1
    assert stopped > 3


def test_what_rests_is_added_to_whole_episodes_and_then_all_take_turns() -> None:
    small, big = pushing_graph(1), pushing_graph(2)
    data = pushed()
    made = add_objects(data, small, big, names(2))
    assert len(made) == len(data) and set(made.provenance["recipe"].tolist()) == {2}
    turns = augment_episodes(made, big, turns=True, episodes=20, keep_recorded=False)
    assert pushing(turns.rows, 2).equal(turns.next_state)
    moved = [turns[rows].state[0, 1:] != turns[rows].next_state[-1, 1:] for rows in walks(turns).values()]
    assert sum(bool(one.all()) for one in moved) >= 10


def pushing_graph(count: int) -> LocalGraph:
    def near(rows: Tensor) -> Tensor:
        mask = torch.eye(count + 2, count + 1, dtype=torch.bool).repeat(len(rows), 1, 1)
        mask[:, -1, 0] = True
        for number in range(1, count + 1):
            mask[:, 0, number] = mask[:, -1, number] = (rows[:, 0] - rows[:, number]).abs() < 1.5
        return mask

    state = {"hand": [0], **{name: [1 + number] for number, name in enumerate(names(count))}}
    edges = {"hand": ["hand", "push"], **{name: [name] for name in names(count)}}
    return LocalGraph(state, {"push": [0, 1]}, edges, local=near)


def pushing(rows: Tensor, count: int) -> Tensor:
    """A hand on a line that goes by steps of one, and takes along what is with it if it grips."""
    hand, move, grip = rows[:, 0], rows[:, -2], rows[:, -1] > 0
    things = [torch.where((rows[:, 1 + i] == hand) & grip, rows[:, 1 + i] + move, rows[:, 1 + i]) for i in range(count)]
    return torch.stack([hand + move, *things], 1)


def pushed() -> Transitions:
    """Episode e has a thing at 10 e, which the hand takes to and fro."""
    parts, episode = [], []
    for number in range(12):
        state = torch.tensor([[10.0 * number - 4, 10.0 * number]])
        way = [1] * 4 + [1] * 2 + [-1] * 4 + [1] * 4 + [-1] * 2 + [-1] * 4
        grips = [0] * 4 + [1] * 2 + [0] * 4 + [0] * 4 + [1] * 2 + [0] * 4
        for move, grip in zip(way, grips, strict=True):
            action = torch.tensor([[float(move), float(grip)]])
            parts.append((state, action, pushing(torch.cat([state, action], 1), 1)))
            state = parts[-1][-1]
            episode.append(number)
    states, actions, after = (torch.cat(part) for part in zip(*parts, strict=True))
    return Transitions(states, actions, after, episode=torch.tensor(episode))


def test_worlds_that_do_not_fit_are_refused_in_full() -> None:
    two, three = TASKS[2].graph, TASKS[3].graph
    assert refusal(lambda: add_objects(DATA[2], two, three, names(2))) == (
        "alike must name objects that the data has, and others that only the bigger graph has, each once; got object1, "
        "object2, of which the data has object1, object2."
    )
    assert refusal(lambda: add_objects(DATA[2], two, TASKS[5].graph, names(3))) == (
        "the two graphs must have the same factors but for those that are added; they differ in object4, object5."
    )
    assert refusal(lambda: add_objects(DATA[2], two, three, names(3), resting=2.0)) == (
        "resting must be 0 or a small share of a column's largest number, got 2.0."
    )
    assert "there is no state factor of the bigger graph 'box'" in refusal(
        lambda: add_objects(DATA[2], two, three, [*names(3), "box"])
    )
    wide = LocalGraph({"a": [0], "b": [1, 2]}, {"push": [0]}, {"a": ["a", "push"], "b": ["b"]})
    one = LocalGraph({"a": [0]}, {"push": [0]}, {"a": ["a", "push"]})
    table = Transitions(torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4, 1), episode=torch.tensor([0, 0, 1, 1]))
    assert refusal(lambda: add_objects(table, one, wide, ["a", "b"])) == (
        "'b' has 2 columns in the bigger graph and 'a' 1 in the data's."
    )
    pair = LocalGraph({"a": [0], "b": [1]}, {"push": [0]}, {"a": ["a", "push"], "b": ["b", "push"]})
    assert refusal(lambda: add_objects(table, one, pair, ["a", "b"])) == (
        "in no recorded row is one of a, b linked to nothing else, so that it could be in another episode too. "
        "Does the graph have a local rule?"
    )


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    one, again, other = made_of(2, 3, 1), made_of(2, 3, 1), made_of(2, 3, 2)
    assert one.rows.equal(again.rows) and one.next_state.equal(again.next_state)
    assert len(one) != len(other) or not one.rows.equal(other.rows)
