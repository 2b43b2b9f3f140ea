"""The least an update can take: counted by hand, scaled to runs, and without a trace in the networks."""

from __future__ import annotations

import itertools

import pytest
from agents_world import A, S, small
from cloning_agent import Cloning
from torch import Tensor

from experiments.speed.roofline import PEAKS, Work, work
from mocoda import Agent
from mocoda.agents import Batch
from mocoda.agents.agent import Noise
from mocoda.engine import networks
from mocoda.engine.networks import Weights

H200 = "NVIDIA H200"
HIDDEN, B = (5, 3), 4
CRITIC, ACTOR = (S + A, 5, 3, 1), (S, 5, 3, A)

Count = tuple[float, float]  # operations, numbers moved


def product(rows: int, shared: int, columns: int) -> Count:
    """(rows, shared) times (shared, columns): a multiplication and an addition each; both are read, one is written."""
    return 2 * rows * shared * columns, rows * shared + shared * columns + rows * columns


def total(*counts: Count) -> Count:
    return sum(count[0] for count in counts), sum(count[1] for count in counts)


def times(factor: float, count: Count) -> Count:
    return factor * count[0], factor * count[1]


def forward(sizes: tuple[int, ...]) -> Count:
    return total(*(product(B, inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)))


def to_weights(sizes: tuple[int, ...]) -> Count:
    """Backward to a network's own weights: inputs' transpose times what comes from behind."""
    return total(*(product(inputs, B, outputs) for inputs, outputs in itertools.pairwise(sizes)))


def to_inputs(sizes: tuple[int, ...]) -> Count:
    """Backward through a network: what comes from behind times the weights' transpose."""
    return total(*(product(B, outputs, inputs) for inputs, outputs in itertools.pairwise(sizes)))


def numbers(sizes: tuple[int, ...]) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(sizes))


def test_the_work_of_td3_bc_is_that_counted_by_hand() -> None:
    """Two critics that move at every update; at every second one the actor and the targets do too."""
    target = total(forward(ACTOR), times(2, forward(CRITIC)))
    critic = total(target, times(2, total(forward(CRITIC), to_weights(CRITIC), to_inputs(CRITIC[1:]))))
    through_critics = times(2, total(forward(CRITIC), to_inputs(CRITIC)))
    actor = total(forward(ACTOR), through_critics, to_weights(ACTOR), to_inputs(ACTOR[1:]))
    operations, moved = total(critic, times(1 / 2, actor))
    moved += 7 * 2 * numbers(CRITIC) + 7 * numbers(ACTOR) / 2  # Adam
    moved += 3 * (2 * numbers(CRITIC) + numbers(ACTOR)) / 2  # targets
    found = work(small("td3-bc", hidden=HIDDEN, batch=B), S, A)
    assert found.operations == pytest.approx(operations, rel=1e-12)
    assert found.bytes == pytest.approx(4 * moved, rel=1e-12)


def test_the_work_of_one_layer_is_a_handful_of_numbers() -> None:
    """3 inputs, 2 outputs, 4 rows: the output, and the gradient of the weights."""
    agent = Cloning(hidden=(), batch=4)
    assert work(agent, 3, 2) == (2 * (2 * 4 * 3 * 2), 4 * (2 * (12 + 6 + 8) + 7 * (6 + 2)))


@pytest.mark.parametrize("name", ["td3-bc", "cql", "sac"])
def test_work_grows_with_the_batch_but_the_optimiser_s_share_does_not(name: str) -> None:
    one, two, three = (work(small(name, hidden=HIDDEN, batch=rows), S, A) for rows in (4, 8, 12))
    assert two.operations == pytest.approx(2 * one.operations) and three.operations == pytest.approx(3 * one.operations)
    assert one.bytes < two.bytes < 2 * one.bytes
    assert three.bytes - two.bytes == pytest.approx(two.bytes - one.bytes)


def test_a_first_stage_is_not_counted() -> None:
    short, long = (work(small("bcq", sampler_updates=updates), S, A) for updates in (1, 4))
    assert short == pytest.approx(long)
    wider = work(small("bcq", sampler_batch=46), S, A)
    assert wider == pytest.approx(short)


# From work to time


def test_time_is_the_longer_of_arithmetic_and_traffic() -> None:
    operations, traffic = PEAKS[H200]
    assert (operations, traffic) == (494e12, 4.8e12)
    assert Work(operations, traffic / 2).milliseconds(1, H200) == pytest.approx(1e3)
    assert Work(operations / 2, traffic).milliseconds(1, H200) == pytest.approx(1e3)
    assert Work(operations / 4, traffic / 8).milliseconds(1, H200) == pytest.approx(250)


def test_time_scales_with_the_runs() -> None:
    found = work(small("td3-bc", hidden=HIDDEN, batch=B), S, A)
    one = found.milliseconds(1, H200)
    assert one is not None and one > 0
    for runs in (5, 25, 100):
        assert found.milliseconds(runs, H200) == pytest.approx(runs * one)


@pytest.mark.parametrize("device", ["CPU, 2 threads", "NVIDIA H100", "", "nvidia h200"])
def test_a_device_without_known_peaks_has_no_least_time(device: str) -> None:
    assert Work(1e9, 1e6).milliseconds(5, device) is None


# Nothing is left behind


def padding() -> tuple[int, int]:
    return networks.LINE, networks.ROWS


def test_counting_leaves_the_padding_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    assert padding() == (16, 4)
    work(small("sac"), S, A)
    assert padding() == (16, 4)
    monkeypatch.setattr(networks, "LINE", 32)
    monkeypatch.setattr(networks, "ROWS", 8)
    work(small("sac"), S, A)
    assert padding() == (32, 8)


def test_work_does_not_depend_on_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Agent = small("td3-bc")
    before = work(agent, S, A)
    monkeypatch.setattr(networks, "LINE", 64)
    assert work(agent, S, A) == before


class BrokenError(Exception):
    pass


class Broken(Cloning):
    def actor_loss(self, weights: Weights, batch: Batch, noise: Noise) -> Tensor:
        raise BrokenError


def test_a_count_that_fails_leaves_the_padding_as_it_was_too() -> None:
    with pytest.raises(BrokenError):
        work(Broken(hidden=(), batch=2), S, A)
    assert padding() == (16, 4)
