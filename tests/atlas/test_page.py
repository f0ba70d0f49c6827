"""The page of `genius atlas` in a browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright")
from browser import chromium, violations, watched
from playwright.sync_api import Browser, expect

from tests.atlas.conftest import HOSTILE


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def test_the_tree_opens_level_by_level(browser: Browser, atlas_folder: Path):
    with watched(browser, f"file://{atlas_folder}") as page:
        page.goto(f"file://{atlas_folder}/atlas.html")
        expect(page.locator("#facts")).to_contain_text("111 items (36 images, 39 texts, 36 pairs)")
        expect(page.locator("[data-prefix]")).to_have_count(3)
        page.locator("[data-prefix='0']").click()
        expect(page.locator("[data-prefix='0']")).to_have_attribute("aria-expanded", "true")
        expect(page.locator("[data-prefix^='0-']").first).to_be_visible()
        assert page.locator(".examples img").first.evaluate("image => image.complete && image.naturalWidth > 0")
        assert not violations(page)
        page.locator("[data-prefix='0']").click()
        expect(page.locator("[data-prefix^='0-']").first).to_be_hidden()


def test_texts_are_shown_as_text(browser: Browser, atlas_folder: Path):
    with watched(browser, f"file://{atlas_folder}") as page:
        page.goto(f"file://{atlas_folder}/atlas.html")
        while (closed := page.locator("[data-prefix^='1'][aria-expanded='false']")).count():
            closed.first.click()
        expect(page.get_by_text(HOSTILE, exact=True).first).to_be_visible()
        assert page.locator("b, img[src=x]").count() == 0


def test_codes_side_by_side_and_measures(browser: Browser, atlas_folder: Path):
    with watched(browser, f"file://{atlas_folder}") as page:
        page.goto(f"file://{atlas_folder}/atlas.html")
        page.get_by_role("button", name="Codes side by side").click()
        page.locator("#level").select_option("3")
        page.locator("[data-code]").nth(1).click()
        expect(page.locator("#detail .columns .node").first).to_be_visible()
        assert not violations(page)
        page.get_by_role("button", name="Measures").click()
        expect(page.get_by_role("table").first).to_contain_text("Perplexity")
        assert not violations(page)
