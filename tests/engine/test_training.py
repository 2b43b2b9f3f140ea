from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mocoda.engine.checkpoint import Checkpoint, fingerprint, load_trained, save_trained
from mocoda.engine.optimise import Adam, Captured, Tensors, in_turn
from mocoda.engine.randomness import Stream

CPU = torch.device("cpu")


def stream(*labels: str | int) -> Stream:
    return Stream(0, "test-training", *labels)


def step_towards(targets: list[Tensor], weights: list[Tensor]) -> Tensor:
    """A loss whose gradient changes with the weights, by products alone: those round the same at every place."""
    total = torch.zeros(())
    for weight, target in zip(weights, targets, strict=True):
        total = total + ((weight - target) * (weight - target) + weight * target * weight).sum()
    return total


def train(adam: Adam, targets: list[Tensor], steps: int) -> list[Tensor]:
    for _ in range(steps):
        adam.step(step_towards(targets, adam.weights))
    return [weight.detach().clone() for weight in adam.weights]


def fresh(*shapes: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    weights = [stream("weight", i).normal(*shape).requires_grad_() for i, shape in enumerate(shapes)]
    targets = [stream("target", i).normal(*shape) for i, shape in enumerate(shapes)]
    return weights, targets


# Captured and in_turn


def test_a_chunk_is_its_updates_in_turn_and_returns_what_they_returned() -> None:
    total = torch.zeros(3)
    seen: list[Tensor] = []

    def update(part: Tensors, number: int) -> Tensor:
        seen.append(part["a"].clone())
        total.add_(part["a"] * part["b"])
        return total.clone()

    chunk = Captured(in_turn(update), CPU)
    (first, second), factors = stream("chunk").normal(2, 4, 3), stream("factors").normal(2, 4)
    results = [chunk({"a": first, "b": factors[0]}), chunk({"a": second, "b": factors[1]})]
    assert torch.stack(seen).equal(torch.cat([first, second]))
    expected = torch.zeros(3)
    for part, factor, result in zip(torch.cat([first, second]), factors.flatten(), torch.cat(results), strict=True):
        expected = expected + part * factor
        assert result.equal(expected)
    assert results[0].shape == (4, 3)


# Adam


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_the_published_algorithm(weight_decay: float) -> None:
    weights, targets = fresh((4, 3), (5,))
    expected = [weight.detach().double() for weight in weights]
    first = [torch.zeros_like(e) for e in expected]
    second = [torch.zeros_like(e) for e in expected]
    for t in range(1, 11):
        leaves = [e.clone().requires_grad_() for e in expected]
        loss = step_towards([target.double() for target in targets], leaves)
        for i, gradient in enumerate(torch.autograd.grad(loss, leaves)):
            gradient = gradient + weight_decay * expected[i]
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient.square()
            unbiased = first[i] / (1 - 0.9**t), second[i] / (1 - 0.999**t)
            expected[i] = expected[i] - 0.01 * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    for result, wanted in zip(train(Adam(weights, 0.01, weight_decay), targets, 10), expected, strict=True):
        torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-5)


def test_adam_restored_from_its_state_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    shapes = [(2, 2)] * 12  # more than ten, so that the names adam.1 and adam.11 must not be mixed up
    weights, targets = fresh(*shapes)
    through = train(Adam(weights, 0.01, 0.01), targets, 9)

    weights, targets = fresh(*shapes)
    adam = Adam(weights, 0.01, 0.01)
    halfway = train(adam, targets, 4)
    save_trained(tmp_path / "state", "checkpoint", adam.state(), BARE)
    restored = Adam([weight.requires_grad_() for weight in halfway], 0.01, 0.01)
    restored.restore(safetensors.torch.load_file(tmp_path / "state"))
    for resumed, expected in zip(train(restored, targets, 5), through, strict=True):
        assert resumed.equal(expected)


# Checkpoint

BARE: dict[str, Any] = {"settings": {}}


def loaded(checkpoint: Checkpoint) -> tuple[int, dict[str, Tensor]]:
    found: dict[str, Tensor] = {}
    return checkpoint.resume(found.update), found


def some_tensors() -> dict[str, Tensor]:
    drawn = stream("tensors")
    return {"a": drawn.normal(3, 4), "b": drawn.integers(9, 5), "c": drawn.normal(2) > 0, "d": torch.tensor(math.inf)}


def written(path: Path, done: int = 7, **identity: object) -> Path:
    Checkpoint(path, identity, interval=0.0).offer(done, some_tensors)
    return path


def test_a_checkpoint_without_a_path_neither_loads_nor_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(None, {"x": 1}, interval=0.0)
    checkpoint.offer(1, never)
    assert loaded(checkpoint) == (0, {})
    assert loaded(Checkpoint(tmp_path / "none", {"x": 1})) == (0, {})
    assert list(tmp_path.iterdir()) == []


def never() -> dict[str, Tensor]:
    raise AssertionError("asked for tensors that nobody saves")


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = written(tmp_path / "deep" / "er" / "checkpoint", done=7, seeds=[0, 1], name="x")
    done, tensors = loaded(Checkpoint(str(path), {"name": "x", "seeds": [0, 1]}))  # the order of keys does not matter
    assert done == 7
    assert tensors.keys() == some_tensors().keys()
    for name, tensor in some_tensors().items():
        assert tensors[name].dtype == tensor.dtype and tensors[name].equal(tensor)
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_is_written_once_per_interval_and_tensors_are_asked_for_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("mocoda.engine.checkpoint.time.monotonic", lambda: clock[0])
    asked: list[int] = []

    def tensors(done: int) -> Callable[[], dict[str, Tensor]]:
        def ask() -> dict[str, Tensor]:
            asked.append(done)
            return {"a": torch.zeros(1)}

        return ask

    checkpoint = Checkpoint(tmp_path / "checkpoint", {"x": 1})
    for done, now in enumerate([100.0, 129.9, 130.0, 131.0, 159.9, 160.0, 300.0, 301.0]):
        clock[0] = now
        checkpoint.offer(done, tensors(done))
    assert asked == [2, 5, 6]
    assert loaded(checkpoint)[0] == 6


# save_trained and fingerprint


def test_tensors_are_saved_as_they_are_seen_whatever_their_layout(tmp_path: Path) -> None:
    base = stream("layout").normal(4, 6)
    tensors = {
        "transposed": base.T,
        "every other": base[:, ::2],
        "repeated": base[:1].expand(5, 6),
        "part": base[1],
        "trained": base.clone().requires_grad_(),
        "empty": base[:0],
    }
    save_trained(tmp_path / "file", "policy", tensors, {"settings": {"key": "välue"}})
    with safetensors.safe_open(tmp_path / "file", framework="pt") as file:
        assert load_trained(tmp_path / "file", "policy")[1]["settings"] == {"key": "välue"}
        assert set(file.keys()) == tensors.keys()
        for name, tensor in tensors.items():
            assert file.get_tensor(name).equal(tensor.detach())


def test_a_fingerprint_depends_on_every_number_and_on_their_order_but_not_on_their_layout() -> None:
    values = stream("print").normal(3, 4)
    found = fingerprint(values)
    assert fingerprint(values.clone()) == found
    assert fingerprint(values.T.contiguous().T) == found
    assert fingerprint(values.clone().requires_grad_()) == found
    for row in range(3):
        for column in range(4):
            changed = values.clone()
            changed[row, column] = torch.nextafter(changed[row, column], torch.tensor(math.inf))
            assert fingerprint(changed) != found
    assert fingerprint(values.flip(0)) != found
    assert fingerprint(values, values) != found
    one, two = values, stream("other").normal(3, 4)
    assert fingerprint(one, two) != fingerprint(two, one)
