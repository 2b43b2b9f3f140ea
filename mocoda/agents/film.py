"""Videos of a policy, or of the expert, in its task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mocoda.agents.evaluation import Floats, can_be_played, flat
from mocoda.agents.policy import Policy
from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file
from mocoda.tasks import Task
from mocoda.tasks.task import environment_action, make_environment

Picture = NDArray[np.uint8]
STAY = 12  # repetitions of the last picture of an episode


def film(path: str | Path, task: Task, policy: Policy | None, *, episodes: int = 3, seed: int = 0) -> int:
    """Films episodes, one after the other, as an .mp4 or .gif file, and returns how many of them succeeded.

    policy  None: HookSweep2's scripted expert
    """
    target = Path(path)
    if target.suffix not in WRITERS:
        raise InputError(f"a video's name must end in {' or '.join(WRITERS)}, got {str(path)!r}.")
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, got {episodes}.")
    if policy is None and task.name != "hooksweep2":
        raise InputError(f"the task {task.name!r} has no scripted expert; hooksweep2 has one.")
    if not can_be_played(task):
        raise InputError(f"the task {task.name!r} has no environment to watch: make_task(environment=...).")
    if "rgb_array" not in make_environment(task.environment).metadata.get("render_modes", ()):
        raise InputError(f"the environment of {task.name!r} draws no pictures, so there is nothing to watch.")
    environment = make_environment(task.environment, render_mode="rgb_array")
    successes = []

    def pictures() -> Iterator[Picture]:
        for number in range(episodes):
            successes.append((yield from _episode(environment, policy, seed + number)))

    with closing(environment), whole_file(target) as part:
        WRITERS[target.suffix](part, pictures(), environment.metadata.get("render_fps", 20))
    return sum(successes)


def _episode(environment: Any, policy: Policy | None, seed: int) -> Generator[Picture, None, bool]:
    """Yields the pictures of an episode and returns whether it succeeded."""
    observation = flat(environment.reset(seed=seed)[0])
    act = _actor(policy, observation)
    ended = False
    while not ended:
        yield environment.render()
        seen, _, terminated, truncated, info = environment.step(
            environment_action(environment.action_space, act(observation))
        )
        observation, ended = flat(seen), terminated or truncated
    yield from [environment.render()] * STAY
    return bool(info.get("is_success", terminated))


def _actor(policy: Policy | None, first: Floats) -> Callable[[Floats], Floats]:
    """Returns the function that chooses the actions of an episode whose first observation is `first`."""
    if policy is None:
        from mocoda.tasks.hooksweep_expert import Expert

        expert = Expert(first[16:].astype(np.float64))
        return lambda observation: expert.act(observation[:16].astype(np.float64)).astype(np.float32)
    if len(first) != policy.state_width:
        raise InputError(
            f"the agent was trained on {policy.state_width} columns of state and goal, but this task shows "
            f"{len(first)}. Name the task it was trained for."
        )
    step = count()
    return lambda observation: np.asarray(policy.act(observation, seed=next(step)))


def _write_mp4(path: Path, pictures: Iterator[Picture], speed: int) -> None:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise InputError(
            "an .mp4 file needs imageio-ffmpeg; pip install 'mocoda[hooksweep]', or ask for a .gif."
        ) from error
    first = next(pictures)
    height, width, _ = first.shape
    video = imageio_ffmpeg.write_frames(str(path), (width, height), fps=speed, output_params=["-f", "mp4"])
    with closing(video):
        video.send(None)
        video.send(first)
        for picture in pictures:
            video.send(picture)


def _write_gif(path: Path, pictures: Iterator[Picture], speed: int) -> None:
    """Writes every second picture at half its size, because gifs are large."""
    images = (Image.fromarray(picture).reduce(2) for picture in islice(pictures, 0, None, 2))
    next(images).save(path, "GIF", save_all=True, append_images=images, duration=2_000 // speed, loop=0)


WRITERS = {".mp4": _write_mp4, ".gif": _write_gif}
