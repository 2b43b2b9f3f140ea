"""a preset -> a table of the paper, measured: the whole method as one program, and what it draws and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from mocoda.files import unknown_name, versions
from mocoda.training import device_name

Settings = TypeVar("Settings")


def preset(presets: Mapping[str, Settings], name: str) -> Settings:
    """The settings of that name."""
    if name not in presets:
        raise unknown_name("preset", name, presets)
    return presets[name]


def described(settings: Any) -> dict[str, Any]:
    """An experiment's settings as JSON values."""
    values: dict[str, Any] = settings.config() if hasattr(settings, "config") else asdict(settings)
    return values


def heading(table: str, settings: Any, metric: str, device: str, seconds: float, **more: Any) -> dict[str, Any]:
    """What every file of results says first: what was measured, how, on what and for how long.

    With resumed=True the seconds are those of the last part.
    """
    return {
        "table": table,
        "preset": settings.preset,
        "metric": metric,
        "device": device_name(device),
        "seconds": round(seconds, 1),
        **more,
        "versions": versions(),
        "config": described(settings),
    }
