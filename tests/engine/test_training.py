from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mocoda.engine.checkpoint import Checkpoint, fingerprint, load_trained, save_trained
from mocoda.engine.optimise import Adam
from mocoda.engine.randomness import Stream


def stream(*labels: str | int) -> Stream:
    return Stream(0, "test-training", *labels)


# Adam


def moved(adam: Adam, steps: int) -> list[Tensor]:
    for _ in range(steps):
        adam.step(torch.stack([(weight * weight * (weight - 1)).sum() for weight in adam.weights]).sum())
    return [weight.detach().clone() for weight in adam.weights]


# Checkpoint


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

    def tensors(done: int) -> dict[str, Tensor]:
        asked.append(done)
        return {"a": torch.zeros(1)}

    checkpoint = Checkpoint(tmp_path / "checkpoint", {"x": 1})
    for done, now in enumerate([100.0, 129.9, 130.0, 131.0, 159.9, 160.0, 300.0, 301.0]):
        clock[0] = now
        checkpoint.offer(done, functools.partial(tensors, done))
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
