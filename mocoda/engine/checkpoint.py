"""Trained tensors and how they were made, in safetensors files; checkpoints that survive a kill."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mocoda.engine.errors import InputError, differing_keys
from mocoda.engine.files import check_writable, whole_file


class Checkpoint:
    """A file that holds a training's tensors and how far it is, rewritten whole every `interval` seconds."""

    def __init__(self, path: str | Path | None, identity: Mapping[str, Any], interval: float = 30.0) -> None:
        self.path = None if path is None else Path(path)
        if self.path is not None:
            check_writable(self.path)
        self.identity = dict(identity)
        self.interval = interval
        self.saved_at = time.monotonic()

    def load(self) -> tuple[int, dict[str, Tensor]]:
        """Steps done and the tensors then; 0 and none where there is no file."""
        if self.path is None or not self.path.exists():
            return 0, {}
        try:
            tensors, metadata = load_tensors(self.path)
        except (safetensors.SafetensorError, OSError) as error:
            raise InputError(
                f"checkpoint {str(self.path)!r} cannot be read ({error}). Delete it to start anew."
            ) from error
        found = metadata.get("identity", {})
        if found != self.identity:
            raise InputError(
                f"checkpoint {str(self.path)!r} belongs to another training: it differs in "
                f"{differing_keys(found, self.identity)}. Delete it, or write elsewhere."
            )
        return int(metadata["done"]), tensors

    def offer(self, done: int, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Saves if it is time to."""
        if self.path is None or time.monotonic() - self.saved_at < self.interval:
            return
        save_tensors(self.path, tensors(), {"identity": self.identity, "done": done})
        self.saved_at = time.monotonic()


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """A safetensors file; the metadata is one JSON text, for safetensors writes several keys in random order."""
    with whole_file(path) as part:
        ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            safetensors.torch.save_file(ready, part, {"mocoda": json.dumps(dict(metadata), sort_keys=True)})
        except safetensors.SafetensorError as error:
            if f"os error {errno.ENOSPC}" in str(error):  # safetensors has no error of its own for a full disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            raise


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote; no metadata where another program wrote the file."""
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads((file.metadata() or {}).get("mocoda", "{}"))


def load_saved(path: str | Path, maker: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`load_tensors` of a file that a user names and `maker.save` wrote."""
    if not Path(path).is_file():
        raise InputError(f"there is no file {str(path)!r}. `{maker}.save(path)` makes one.")
    try:
        return load_tensors(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} cannot be read as safetensors ({error}).") from error


LARGE = 2**26  # numbers in a tensor that are hashed at a time


def fingerprint(*tensors: Tensor) -> str:
    """A short hash of the numbers in the tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        for block in tensor.detach().reshape(-1).split(LARGE):  # a table may be larger than what memory is left
            digest.update((_condensed(block) if len(block) == LARGE else block).cpu().numpy().data)
    return digest.hexdigest()[:16]


def _condensed(block: Tensor) -> Tensor:
    """Sums of a block's bits that change if any number does, or moves: to hash gigabytes as they are takes minutes."""
    bits: Tensor = block.view(torch.int32).unflatten(0, (-1, 1_024)).long()
    return (bits * torch.arange(1, 2_048, 2, device=block.device)).sum(1)
