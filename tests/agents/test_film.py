"""Videos: as many pictures as steps, whole files or none, and refusals before anything is drawn."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from approved import refused
from PIL import Image, ImageSequence

from mocoda import Policy, Transitions, make_agent, make_task, train_agents
from mocoda.agents.film import STAY, film
from mocoda.tasks import Task, hooksweep_env

TASK = make_task("hooksweep2")
SHOWN = 75 + STAY  # pictures of an episode
pytestmark = pytest.mark.skipif(os.environ.get("MUJOCO_GL") != "egl", reason="there is no EGL to draw with")


@cache
def policy(states: int = 16, goals: int = 6) -> Policy:
    data = Transitions(
        torch.zeros(4, states), torch.zeros(4, 4), torch.zeros(4, states), torch.zeros(4), goal=torch.ones(4, goals)
    )
    agent = make_agent("td3-bc", hidden=(8,), batch=2)
    return train_agents({"still": data}, agent, seeds=[0], updates=1)["still", 0]


@pytest.fixture(autouse=True)
def short_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pictures are soon drawn."""
    monkeypatch.setattr(hooksweep_env, "PICTURE", (48, 64))


def test_the_expert_is_filmed_as_a_gif_that_repeats(tmp_path: Path) -> None:
    assert film(tmp_path / "sweep.gif", TASK, None, episodes=1, seed=1) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.gif"]
    with Image.open(tmp_path / "sweep.gif") as video:
        assert (video.format, video.size, video.info["loop"], video.info["duration"]) == ("GIF", (32, 24), 0, 80)
        lasting = sum(frame.info["duration"] for frame in ImageSequence.Iterator(video))
    assert lasting == 80 * ((SHOWN + 1) // 2)  # pictures that are alike are stored once, and stay longer


def test_a_policy_is_filmed_as_an_mp4(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    assert film(tmp_path / "sweep.mp4", TASK, policy(), episodes=2) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["sweep.mp4"]
    assert imageio_ffmpeg.count_frames_and_secs(tmp_path / "sweep.mp4") == (2 * SHOWN, 2 * SHOWN / 25)


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_film_that_breaks_off_leaves_nothing(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def breaks(self: hooksweep_env.HookSweep2Env) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        drawn.append(1)
        if len(drawn) == 5:
            raise RuntimeError("the light went out")
        return np.zeros((48, 64, 3), np.uint8)

    monkeypatch.setattr(hooksweep_env.HookSweep2Env, "render", breaks)
    with pytest.raises(RuntimeError, match="the light went out"):
        film(tmp_path / f"sweep{suffix}", TASK, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "task", "actor", "episodes"),
    [
        ("sweep.avi", TASK, None, 1),
        ("sweep.gif", TASK, None, 0),
        ("sweep.gif", make_task("navigation"), None, 1),
        ("sweep.gif", TASK, (3, 2), 1),
    ],
)
def test_what_cannot_be_filmed_is_refused(
    name: str, task: Task, actor: tuple[int, int] | None, episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused():
        film(name, task, actor and policy(*actor), episodes=episodes)
    assert list(tmp_path.iterdir()) == []
