"""Results as they are committed, for the tests that read them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mocoda.dynamics.model import DynamicsConfig

RESULTS = Path(__file__).parents[2] / "results"


def committed(name: str) -> dict[str, Any]:
    """A result with the settings it was measured under; those that there were none of then have their defaults."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text("utf-8"))
    if found.get("table") == "table2":
        found["config"].setdefault("stratified", False)
    _update_agents(found.get("config", {}))
    for name in ("dynamics", "object_dynamics"):
        if name in found.get("config", {}):
            settings = asdict(DynamicsConfig(**found["config"][name]))
            found["config"][name] = json.loads(json.dumps(settings))
    return found


def _update_agents(config: Any) -> None:
    """Agents used to have `lowest` and `highest` where they have `value_range` now, and learned rewards as they are."""
    for settings in config.values() if isinstance(config, dict) else ():
        if isinstance(settings, dict) and "lowest" in settings:
            settings["value_range"] = [settings.pop("lowest"), settings.pop("highest")]
            settings |= {"scale_rewards": False, "decay": False, "standardise": False} | settings
        else:
            _update_agents(settings)
