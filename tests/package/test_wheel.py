"""The package as others get it: a wheel, in an environment that has never seen the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import mocoda

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "mocoda", source / "mocoda", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh environment with the wheel; what it depends on is read from this one's packages."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (packages,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file is no site folder: the editable install's own .pth file there is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.mark.long
def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "mocoda").rglob("*.py")} | {"mocoda/py.typed"}
    info = f"mocoda-{mocoda.__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == source
    assert any(name.startswith(info) and name.endswith("LICENSE") for name in names)
    assert wheel.name == f"mocoda-{mocoda.__version__}-py3-none-any.whl"


@pytest.mark.long
def test_the_installed_package_is_not_the_checkout(binaries: Path, tmp_path: Path) -> None:
    found = run(binaries / "python", "-c", "import mocoda; print(mocoda.__file__)", cwd=tmp_path).strip()
    assert Path(found).is_relative_to(binaries.parent) and not Path(found).is_relative_to(ROOT)


@pytest.mark.long
def test_the_installed_command_helps_and_collects(binaries: Path, tmp_path: Path) -> None:
    said = run(binaries / "mocoda", "--help", cwd=tmp_path)
    assert all(verb in said for verb in ("demo", "collect", "augment", "train", "evaluate", "paper", "bench"))
    run(binaries / "mocoda", "collect", "navigation", "--rows", "100", "--out", "x.hdf5", cwd=tmp_path)
    script = "import mocoda; print(len(mocoda.Transitions.load('x.hdf5')))"
    assert run(binaries / "python", "-c", script, cwd=tmp_path) == "100\n"


@pytest.mark.long
def test_gymnasium_makes_the_installed_environment(binaries: Path, tmp_path: Path) -> None:
    script = (
        "import mocoda, gymnasium; env = gymnasium.make('mocoda/Navigation2D-v0'); env.reset(seed=0); "
        "print(len(env.step(env.action_space.sample())))"
    )
    assert run(binaries / "python", "-c", script, cwd=tmp_path) == "5\n"
