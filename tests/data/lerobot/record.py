"""Records a small data set by LeRobot's own code: `python record.py FOLDER`, where lerobot is installed.

The folders beside this file were made by it, v2.1 with lerobot 0.3.3 and v3.0 with lerobot 0.4.4 (Python 3.11, no
videos); v2.0 is v2.1 with the one difference between them: `meta/stats.json` for `meta/episodes_stats.jsonl`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found]

LENGTHS, TASKS = (5, 1, 4), ("push the box", "pull the box", "push the box")
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["arm.x", "arm.y", "grip"]},
    "observation.environment_state": {"dtype": "float32", "shape": (2,), "names": {"axes": ["x", "y"]}},
    "observation.images.top": {"dtype": "image", "shape": (4, 4, 3), "names": ["height", "width", "channels"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["arm.x", "arm.y"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
}


def record(folder: Path) -> None:
    data = LeRobotDataset.create("me/boxes", fps=10, features=FEATURES, root=folder, use_videos=False)
    frame = 0
    for length, task in zip(LENGTHS, TASKS, strict=True):
        for step in range(length):
            values = {
                "observation.state": np.array([frame, frame + 0.25, -frame], np.float32),
                "observation.environment_state": np.array([10 * frame, 0.1], np.float32),
                "observation.images.top": np.full((4, 4, 3), frame, np.uint8),
                "action": np.array([frame / 100, 1], np.float32),
                "next.reward": np.array([frame / 10], np.float32),
                "next.done": np.array([step == length - 1]),
            }
            try:
                data.add_frame(values, task)  # lerobot 0.3
            except TypeError:
                data.add_frame(values | {"task": task})
            frame += 1
        data.save_episode()
    if hasattr(data, "finalize"):
        data.finalize()


if __name__ == "__main__":
    record(Path(sys.argv[1]))
