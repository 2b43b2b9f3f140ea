"""Streams: what their numbers depend on, how they are distributed, and that nothing else draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from approved import refused
from scipy import stats

import mocoda
from mocoda.engine.randomness import Stream, as_stream, generator


def everything(stream: Stream) -> list[torch.Tensor]:
    weights = torch.tensor([1.0, 2.0, 3.0])
    return [
        stream.uniform(5),
        stream.normal(2, 3),
        stream.integers(1000, 7),
        stream.permutation(11),
        stream.categories(weights, 13),
        stream.category_per_row(weights.repeat(17, 1)),
    ]


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert all(left.equal(right) for left, right in zip(one, other, strict=True))


def test_another_seed_or_label_gives_other_numbers() -> None:
    labels: list[tuple[str | int, ...]] = [(), ("a",), ("b",), ("a", "b"), ("b", "a"), ("ab",), (1,), ("1",)]
    streams = [Stream(seed, *label) for seed in (0, 1, -1) for label in labels]
    drawn = {tuple(stream.uniform(4, dtype=torch.float64).tolist()) for stream in streams}
    assert len(drawn) == len(streams)


def test_a_child_is_the_stream_of_all_labels_and_a_stream_gives_its_numbers_again() -> None:
    assert_equal(everything(Stream(3, "a").child("b", 2)), everything(Stream(3, "a", "b", 2)))
    assert_equal(everything(Stream(3, "a").child("b").child(2)), everything(Stream(3, "a", "b", 2)))


def test_a_stream_and_its_children_do_not_depend_on_what_the_other_drew() -> None:
    parent, child = Stream(3, "a"), Stream(3, "a").child("b")
    parent.normal(100)
    child.normal(100)
    assert_equal(everything(parent.child("b")), everything(Stream(3, "a", "b")))
    used = Stream(3, "a")
    used.child("b").normal(100)
    assert_equal(everything(used), everything(Stream(3, "a")))


def test_streams_neither_read_nor_change_the_global_generator() -> None:
    torch_before = torch.get_rng_state()
    first = everything(Stream(0, "a"))
    assert torch.get_rng_state().equal(torch_before)
    try:
        torch.set_rng_state(torch.Generator().manual_seed(99).get_state())
        assert_equal(everything(Stream(0, "a")), first)
    finally:
        torch.set_rng_state(torch_before)


def test_a_seed_becomes_the_stream_of_that_name_and_a_stream_its_child() -> None:
    assert_equal(everything(as_stream(5, "start", device="cpu")), everything(Stream(5, "start")))
    assert_equal(everything(as_stream(Stream(5, "run"), "start", device="cpu")), everything(Stream(5, "run", "start")))


@pytest.mark.parametrize("seed", [0.5, None, "0"])
def test_a_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with refused():
        Stream(seed, "start")
    with refused():
        as_stream(seed, "start", device="cpu")
    with refused():
        mocoda.make_task("navigation").collect(10, seed=seed)


def test_a_simulation_s_numbers_are_numpy_s_and_depend_on_the_whole_seed() -> None:
    first = generator(3, 5).random(4).tolist()
    assert generator(3, 5).random(4).tolist() == first == np.random.default_rng((3, 5)).random(4).tolist()
    drawn = {tuple(generator(*seed).random(4).tolist()) for seed in ((3,), (5,), (3, 5), (5, 3), (3, 5, 1))}
    assert len(drawn) == 5


def test_numbers_have_their_distribution() -> None:
    uniform = Stream(0, "u").uniform(20_000, low=-2.0, high=3.0, dtype=torch.float64)
    assert stats.kstest(uniform.numpy(), stats.uniform(-2, 5).cdf).pvalue > 1e-3
    assert stats.kstest(Stream(0, "n").normal(20_000).numpy(), stats.norm.cdf).pvalue > 1e-3
    assert stats.chisquare(torch.bincount(Stream(0, "i").integers(6, 30_000), minlength=6).numpy()).pvalue > 1e-3
    assert Stream(0, "p").permutation(1_000).sort().values.equal(torch.arange(1_000))


WEIGHTS = [[5.0, 1.0, 1.0, 3.0], [0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 7.0, 0.0], [1e-3, 1.0, 1e-3, 1.0]]


def assert_in_proportion(drawn: torch.Tensor, weights: list[float]) -> None:
    counts = torch.bincount(drawn, minlength=len(weights)).numpy()
    expected = np.array(weights) / sum(weights) * len(drawn)
    assert len(counts) == len(weights)
    assert (counts[expected == 0] == 0).all()
    likely = expected > 0
    assert stats.chisquare(counts[likely], expected[likely]).pvalue > 1e-3
