"""The documentation site: built strictly, without a network, with every public name on the page of the API."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browser import opened, started

import mocoda
from mocoda.agents import AGENTS
from mocoda.parents import RECIPES

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Page(HTMLParser):
    """What a page refers to, what of that a browser would load with it, and which places in it have names."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.refers: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        target = given.get(LOADED.get(tag, "href"))
        if target:
            self.refers.append(target)
            if tag in LOADED and given.get("rel") not in ("canonical", "next", "prev"):
                self.loads.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a network: whatever asks a name server or a proxy finds none."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "excluded from the built site" not in done.stderr
    return folder


def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


def test_every_document_is_a_page(site: Path) -> None:
    documents = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    assert {page.stem for page in site.glob("*.html")} == {document.stem for document in documents} | {"404"}


def test_no_page_or_style_loads_anything_from_elsewhere(site: Path) -> None:
    loads = [target for page in pages(site).values() for target in page.loads]
    loads = [target for target in loads if not target.startswith("data:")]
    assert loads and [target for target in loads if urlsplit(target).scheme or target.startswith("//")] == []
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;", style.read_text("utf-8")) == []


def test_every_link_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    found = pages(site)
    for file, page in found.items():
        if file.stem == "404":  # its links are from the root, wherever it is shown
            continue
        for target in map(urlsplit, page.refers):
            if target.scheme or target.netloc:
                continue
            there = (file.parent / unquote(target.path)).resolve() if target.path else file
            there = there / "index.html" if there.is_dir() else there
            assert there.is_file(), f"{file.name}: {target.geturl()}"
            if target.fragment and there in found:
                assert unquote(target.fragment) in found[there].places, f"{file.name}: {target.geturl()}"


def test_figures_and_examples_come_along(site: Path) -> None:
    for name in ("experiments/table1/figure3.png", "examples/own_arrays.py"):
        assert (site / name).read_bytes() == (ROOT / name).read_bytes()
    assert not list(site.rglob("site_hooks*"))


@pytest.fixture(scope="module")
def api(site: Path) -> str:
    return (site / "api.html").read_text("utf-8")


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def test_the_page_of_the_api_has_every_public_name_with_its_description(api: str) -> None:
    entries = {entry.split('"')[0]: text_of(entry) for entry in re.split(r'<h3 id="mocoda\.', api)[1:]}
    kinds = [*RECIPES.values(), *AGENTS.values()]
    choices = {f"{kind.__module__.split('.')[1]}.{kind.__name__}" for kind in kinds}
    assert set(entries) == {*mocoda.__all__, *choices}
    for name in mocoda.__all__:
        summary = (inspect.getdoc(getattr(mocoda, name)) or "").split("\n\n")[0]
        assert summary and text_of(summary.replace("`", "")) in entries[name], name


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of every request."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, as people put sites on servers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_browser_opens_every_page_without_a_complaint_and_with_its_images(site: Path) -> None:
    lost = "[...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)"
    with started() as browser, served(site) as address, opened(browser, f"{address}/", color_scheme="dark") as here:
        here.page.keyboard.press("/")
        here.page.keyboard.type("disagreement")
        here.page.locator(".md-search-result__link").first.wait_for()
        assert here.run("getComputedStyle(document.body).colorScheme") == "dark"
        for file in sorted(site.glob("*.html")):
            if file.stem == "404":  # its links are from the root, wherever it is shown
                continue
            here.page.goto(f"{address}/{file.name}")
            here.run("document.querySelectorAll('img[loading=lazy]').forEach(one => one.loading = 'eager')")
            here.page.wait_for_function(f"{lost}.length === 0")
            assert here.text("h1").strip() and here.run("document.body.scrollHeight") > 300
