"""One file format for all that is trained: graphs, dynamics models, policies, learned rewards and checkpoints.

A file is safetensors: the tensors, and a header of JSON values with the file's kind, the version of the format (which
is not the package's), settings, fingerprints of the data and the graph where they are known, a checksum and, for
information only, the versions of the packages that wrote it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from mocoda.engine.errors import InputError, differing_keys, unknown_name
from mocoda.engine.files import VERSION, check_writable, whole_file

Settings = TypeVar("Settings")
FORMAT = 1  # rises when older versions of mocoda could no longer read the files; this one reads all formats up to it
HEADER: dict[str, type] = {"kind": str, "settings": dict, "fingerprints": dict, "versions": dict, "checksum": str}
# What the contents of a damaged file can raise, in safetensors, in torch, or in what is built from them.
DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


# What a kind of file is called in messages, and the way out.
KINDS = {
    "dynamics": ("dynamics model", "Fit a model and save it with `model.save(path)`."),
    "graph": ("learned graph", "Learn a graph and save it with `graph.save(path)`."),
    "policy": ("policy", "Train an agent and save it with `policy.save(path)`."),
    "reward": ("learned reward", "Fit a reward and save it with `reward.save(path)`."),
    "checkpoint": ("checkpoint", "Delete it to start again, or give another path."),
}


def save_trained(path: str | Path, kind: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Writes tensors with a header of JSON values, of which `settings` is required and `fingerprints` optional."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    versions = {"mocoda": VERSION, "torch": torch.__version__, "safetensors": safetensors.__version__}
    whole: dict[str, Any] = {"fingerprints": {}, **header, "kind": kind, "format": FORMAT, "versions": versions}
    whole = json.loads(json.dumps(whole))  # as a reader will see it
    whole["checksum"] = _checksum(ready, whole)
    with whole_file(path) as part:
        # One key, for safetensors writes several in random order.
        part.write_bytes(safetensors.torch.save(ready, {"mocoda": json.dumps(whole, sort_keys=True)}))


def load_trained(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file of this kind that `save_trained` wrote; anything else is refused."""
    with reading(path, kind):
        if not Path(path).exists():
            raise InputError("there is no such file")
        if not Path(path).is_file():
            raise InputError("it is not a file")
        content = Path(path).read_bytes()  # at once, for the file may be replaced at any time
        tensors = safetensors.torch.load(content)
        described = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        header = _header(described.get("__metadata__", {}), kind)
        if _checksum(tensors, header) != header["checksum"]:
            raise InputError("its contents have changed since it was written")
        return tensors, header


@contextmanager
def reading(path: str | Path, kind: str) -> Iterator[None]:
    """Turns whatever a file's contents raise inside the block into one InputError that says what to do."""
    try:
        yield
    except (OSError, safetensors.SafetensorError, *DAMAGE) as error:
        words, way_out = KINDS[kind]
        if isinstance(error, InputError):
            reason = str(error)
        elif isinstance(error, OSError) and error.strerror:
            reason, way_out = error.strerror, "Give the path of a file that can be read."
        elif isinstance(error, OSError | safetensors.SafetensorError):
            reason = f"it is damaged, or not a safetensors file ({error})"
        else:
            reason = f"its contents make no sense ({type(error).__name__}: {error})"
        reason = " ".join(reason.split())[:400].rstrip(".")
        reason += "" if reason.endswith("?") else "."
        raise InputError(f"cannot read {words} {str(path)!r}: {reason} {way_out}") from error


def _header(metadata: Mapping[str, str], kind: str) -> dict[str, Any]:
    if "mocoda" not in metadata:
        raise InputError("it was not written by mocoda")
    try:
        header = json.loads(metadata["mocoda"])
    except RecursionError as error:
        raise InputError(f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise InputError(f"its header must be a JSON object, got {type(header).__name__}")
    version = header.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise InputError(f"its format is {version!r}, and this version of mocoda reads formats up to {FORMAT}")
    for key, of in HEADER.items():
        if not isinstance(header.get(key), of):
            raise InputError(f"its header must have {key!r}, a JSON {'object' if of is dict else 'string'}")
    if header["kind"] != kind:
        other, _ = KINDS.get(header["kind"], (repr(header["kind"]), ""))
        raise InputError(f"it holds another kind of object, {other}")
    return header


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises unless the tensors have the names, shapes and types of those expected, whose numbers do not matter."""
    for name, like in expected.items():
        if name not in tensors:
            raise InputError(f"its tensor {name!r} is missing")
        found = tensors[name]
        if found.shape != like.shape or found.dtype != like.dtype:
            raise InputError(
                f"its tensor {name!r} must be {like.dtype} of shape {tuple(like.shape)}, got {found.dtype} of shape "
                f"{tuple(found.shape)}"
            )
    for name in tensors:
        if name not in expected:
            raise InputError(f"it has a tensor {name!r} that does not belong to it")


@torch.no_grad()
def copy_tensors(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copies those of a file's tensors that have the names of `into`, all of which must be there."""
    check_tensors({name: tensor for name, tensor in tensors.items() if name in into}, into)
    for name, tensor in into.items():
        tensor.copy_(tensors[name])


def from_settings(cls: type[Settings], settings: object) -> Settings:
    """A dataclass of settings from a file's JSON values; settings that the file does not have keep their defaults."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    if not isinstance(settings, dict):
        raise InputError(f"the settings of {cls.__name__} must be a JSON object, got {type(settings).__name__}")
    for name, value in settings.items():
        if name not in names:
            raise unknown_name(f"setting of {cls.__name__} called", name, names)
        if not _fits(value, hints[name]):
            raise InputError(f"the setting {name!r} of {cls.__name__} cannot be {value!r}")
    return cls(**{name: _with_tuples(value) for name, value in settings.items()})


def _fits(value: object, annotation: Any) -> bool:
    """Whether a JSON value fits a type annotation; other annotations than JSON's types fit anything."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is tuple and isinstance(value, list):
        each = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(each) == len(value) and all(map(_fits, value, each))
    if annotation is float:
        return type(value) in (int, float)
    return origin is not tuple and (annotation not in (int, bool, str, NoneType) or type(value) is annotation)


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


class Checkpoint:
    """A file with a training's tensors and progress, rewritten every `interval` seconds.

    identity  what makes two trainings the same, as JSON values: only then the file is used
    """

    def __init__(self, path: str | Path | None, identity: Mapping[str, Any], interval: float = 30.0) -> None:
        self.path = None if path is None else Path(path)
        if self.path is not None:
            check_writable(self.path)
        self.identity = dict(identity)
        self.interval = interval
        self.saved_at = time.monotonic()

    def resume(self, restore: Callable[[dict[str, Tensor]], None]) -> int:
        """Calls `restore` with the saved tensors and returns how many steps were done; 0 where there is no file."""
        if self.path is None:
            return 0
        with reading(self.path, "checkpoint"):
            if not self.path.exists():
                return 0
        tensors, header = load_trained(self.path, "checkpoint")
        with reading(self.path, "checkpoint"):
            found, done = header["settings"].get("identity"), header["settings"].get("done")
            if not isinstance(found, dict) or type(done) is not int or done < 0:
                raise InputError("it does not say which training it belongs to and how far that came")
            if found != self.identity:
                keys = differing_keys(found, self.identity)
                raise InputError(f"it belongs to another training, which differs in {keys}")
            if done:
                restore(tensors)
            return done

    def offer(self, done: int, tensors: Callable[[], Mapping[str, Tensor]]) -> None:
        """Saves the tensors if `interval` seconds have passed since the last time."""
        if self.path is None or time.monotonic() - self.saved_at < self.interval:
            return
        save_trained(self.path, "checkpoint", tensors(), {"settings": {"identity": self.identity, "done": done}})
        self.saved_at = time.monotonic()


BLOCK = 2**26  # numbers in a tensor that are hashed at a time: a copy of a whole table may not fit into memory


def fingerprint(*tensors: Tensor) -> str:
    """A short hash of the numbers in the tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        for block in tensor.detach().reshape(-1).split(BLOCK):
            digest.update(np.ascontiguousarray(block.cpu().numpy()).data)
    return digest.hexdigest()[:16]


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> str:
    """A short hash of all that a file holds."""
    kept = {key: value for key, value in header.items() if key != "checksum"}
    parts = {name: [str(t.dtype), list(t.shape), fingerprint(t)] for name, t in tensors.items()}
    return hashlib.sha256(json.dumps([kept, parts], sort_keys=True).encode()).hexdigest()[:16]
