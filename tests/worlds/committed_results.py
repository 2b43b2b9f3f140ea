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
    config = found.get("config", {})
    if found.get("table") == "table2":
        config.setdefault("stratified", False)
    if found.get("table") == "table3":  # it used to have agents of a single seed, too
        config.pop("once", None)
        config.setdefault("half", False)
    _update_agents(config)
    for name in ("dynamics", "object_dynamics"):
        if name in found.get("config", {}):
            settings = asdict(DynamicsConfig(**found["config"][name]))
            found["config"][name] = json.loads(json.dumps(settings))
    return found


def _update_agents(config: Any) -> None:
    """Agents used to have `lowest` and `highest` where they have `value_range` now, and learned rewards as they are."""
    if not isinstance(config, dict):
        return
    if "lowest" in config:
        config["value_range"] = [config.pop("lowest"), config.pop("highest")]
        config |= {"scale_rewards": False, "decay": False, "standardise": False} | config
    if config.get("agent") == "bcq":
        config |= {"critics": 1, "temperature": 1.0} | config
    for settings in config.values():
        _update_agents(settings)
