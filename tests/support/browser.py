"""A headless Chromium for tests of the page. Whatever goes wrong in a watched page fails its test.

Knows Playwright, how to find a browser, and what no page may do; nothing of what is on the page.

    with chromium() as browser:             skips the test if there is no browser
        with watched(browser, url) as page:     a page that may talk to the server at `url` and to nobody else
    dropped(page, "body", files)            drops files on an element; `pasted` pastes them
    violations(page)                        what axe-core has against the page: WCAG 2.2, A and AA
"""

import base64
import mimetypes
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
NO_BROWSER = (
    "There is no Chromium to show the page in. Get one with `apt install chromium` or `playwright install chromium`."
)
PATIENCE = 30_000  # milliseconds; what takes longer has come to a standstill
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

REPORT_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`The content security policy forbids ${event.blockedURI} (${event.violatedDirective})`))"""
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]

expect.set_options(timeout=PATIENCE)


def find_browser(own: str) -> str | None:
    """own: where Playwright's own browser would be."""
    found = next(filter(None, map(shutil.which, NAMES)), own)
    return found if Path(found).exists() else None


def found() -> bool:
    """Whether there is a browser to show the page in."""
    with sync_playwright() as playwright:
        return find_browser(playwright.chromium.executable_path) is not None


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = find_browser(playwright.chromium.executable_path)
        if path is None:
            pytest.skip(NO_BROWSER)
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Browser, url: str, allowed: Sequence[str] = (), **options: Any) -> Iterator[Page]:
    """A page in a fresh profile.

    allowed: parts of console messages that are no problem, for tests of errors; each has to occur.
    options: of Browser.new_context.
    """
    context = browser.new_context(**{"viewport": DESKTOP, "base_url": url, "locale": "en-GB", **options})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    problems: list[str] = []

    def stop(route: Route) -> None:
        problems.append(f"asked another host: {route.request.url}")
        route.abort()

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    context.route(re.compile(rf"^(?!{re.escape(url)}/|blob:|data:)"), stop)
    context.add_init_script(REPORT_VIOLATIONS)
    page.on("console", hear)
    page.on("pageerror", lambda error: problems.append(f"exception: {error.stack or error}"))

    def missing() -> list[str]:
        return [part for part in allowed if not any(part in problem for problem in problems)]

    try:
        yield page
        patience = time.monotonic() + PATIENCE / 1000
        while missing() and time.monotonic() < patience:  # what the page asked for last may not have come yet
            page.wait_for_timeout(50)
    finally:
        context.close()
    unexpected = [problem for problem in problems if not any(part in problem for part in allowed)]
    assert not unexpected, "\n".join(unexpected)
    assert not missing(), f"the console was expected to say {missing()}, but said {problems}"


def dropped(page: Page, selector: str, files: Mapping[str, bytes]) -> None:
    page.dispatch_event(selector, "drop", {"dataTransfer": _transfer(page, files)})


def dragged(page: Page, selector: str, files: Mapping[str, bytes]) -> None:
    page.dispatch_event(selector, "dragenter", {"dataTransfer": _transfer(page, files)})


def pasted(page: Page, selector: str, files: Mapping[str, bytes]) -> None:
    script = """(element, clipboardData) =>
      element.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}))"""
    page.locator(selector).evaluate(script, _transfer(page, files))


def chosen(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """For `set_input_files`."""
    return [{"name": name, "mimeType": _type(name), "buffer": content} for name, content in files.items()]


def _transfer(page: Page, files: Mapping[str, bytes]) -> Any:
    given = [[name, _type(name), base64.b64encode(content).decode()] for name, content in files.items()]
    return page.evaluate_handle(
        """(given) => {
          const transfer = new DataTransfer();
          for (const [name, type, content] of given) {
            const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
            transfer.items.add(new File([bytes], name, { type }));
          }
          return transfer;
        }""",
        given,
    )


def _type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def violations(page: Page) -> list[str]:
    """In light and in dark, if the page follows the system's wish. What is no matter of colour is looked at once."""
    page.emulate_media(color_scheme="light")
    found = _axe(page, {"type": "tag", "values": WCAG})
    page.emulate_media(color_scheme="dark")
    return found + _axe(page, {"type": "rule", "values": ["color-contrast"]})


def _axe(page: Page, which: dict[str, Any]) -> list[str]:
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("(options) => axe.run(options)", {"resultTypes": ["violations"], "runOnly": which})
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """What sticks out at the right of the window, or reaches over it so that the page scrolls sideways."""
    return page.evaluate(
        """() => {
          const width = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= width) return [];
          return [...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > width + 1)
            .map((one) => `${one.tagName}#${one.id}.${one.className?.baseVal ?? one.className}`);
        }"""
    )
