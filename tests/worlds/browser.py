"""A real browser, and pages in it that tell what went wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def started() -> Iterator[Browser]:
    """The browser of this machine; tests that need one are skipped where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser on this machine ({', '.join(NAMES)}); `apt-get install chromium` brings one")
    with sync_playwright() as playwright:
        # Containers have neither a sandbox nor much shared memory.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it said and asked for that it should not have."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def shows(self, selector: str, text: str) -> None:
        """Waits for a text that comes after a link was followed."""
        expect(self.page.locator(selector).first).to_have_text(text)

    def cells(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def words(self, selector: str) -> list[str]:
        """Texts of a drawing, which are none of the page's own."""
        return self.page.locator(selector).all_text_contents()

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)


@contextmanager
def opened(browser: Browser, file: Path | str, place: str = "", **options: Any) -> Iterator[Opened]:
    """A file, or an address, in a context of its own. What it says on the console, raises or asks others for fails."""
    address = file.as_uri() if isinstance(file, Path) else file
    own = ("file:", "data:", "blob:") if isinstance(file, Path) else (address.rpartition("/")[0], "data:", "blob:")
    context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **options})
    context.set_default_timeout(10_000)
    page = context.new_page()
    found = Opened(page)
    page.on("console", lambda message: found.said.append(f"{page.url}: {message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(str(error)))
    page.on("request", lambda request: found.asked.append(request.url))
    page.goto(address + place)
    try:
        yield found
        assert found.said == [], found.said
        elsewhere = [url for url in found.asked if not url.startswith(own)]
        assert elsewhere == [], elsewhere
    finally:
        context.close()
