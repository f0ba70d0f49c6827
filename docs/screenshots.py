"""Take the screenshots of the page for the docs: `python docs/screenshots.py demo/emoji.genius` (see `make demo`).

Starts `genius serve` on the index and a headless Chromium, as the tests of the page do. Writes page-light.png,
page-dark.png, page-codes.png and page-phone.png next to this file, or into the folder given as the second argument.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from browser import PHONE, chromium, watched  # noqa: E402
from serving import running_server  # noqa: E402

GARDEN = "/?q=things+that+grow+in+a+garden&target=image"
DRINK = "/?q=something+to+drink&target=image"
COLOURS = 256
LARGEST = 250_000  # bytes
GAP = 32  # pixels between the two phones


def main() -> None:
    index, folder = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else HERE)
    with running_server(index) as server, chromium() as browser:
        desktop(browser, server.url, "light")  # the first search after a start is slower
        save(desktop(browser, server.url, "light"), folder / "page-light.png")
        save(desktop(browser, server.url, "dark"), folder / "page-dark.png")
        save(codes(browser, server.url), folder / "page-codes.png")
        save(phones(browser, server.url), folder / "page-phone.png")


def desktop(browser: Browser, url: str, theme: str) -> Image.Image:
    """A question, its results, and how they were found."""
    with watched(browser, url, color_scheme=theme, reduced_motion="reduce") as page:
        page.goto(GARDEN)
        return image(page, "#results")


def codes(browser: Browser, url: str) -> Image.Image:
    """Everything that has the code which the first results share."""
    with watched(browser, url, color_scheme="light", reduced_motion="reduce") as page:
        page.goto(DRINK)
        page.locator("#shared [data-shared] [data-level='1']").first.click()
        return image(page, "#codes-items")


def phones(browser: Browser, url: str) -> Image.Image:
    """Results in light, and how they were found in dark, side by side."""
    phone = {"viewport": PHONE, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
    both = []
    for theme in ("light", "dark"):
        with watched(browser, url, color_scheme=theme, reduced_motion="reduce", **phone) as page:
            page.goto(DRINK)
            page.locator("#results [data-id]").first.wait_for()
            if theme == "dark":
                page.tap("#how-toggle")
            both.append(image(page, "#results"))
    width, height = both[0].size
    together = Image.new("RGB", (2 * width + GAP, height), "white")
    together.paste(both[0], (0, 0))
    together.paste(both[1], (width + GAP, 0))
    return together.resize((together.width // 2, together.height // 2), Image.Resampling.LANCZOS)


def image(page: Page, grid: str) -> Image.Image:
    """What the window shows, once all its images are there."""
    page.locator(f"{grid} [data-id]").first.wait_for()
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement?.blur()")
    page.wait_for_load_state("networkidle")
    page.wait_for_function(
        """() => [...document.images]
            .filter((one) => one.checkVisibility() && one.getBoundingClientRect().top < innerHeight)
            .every((one) => one.complete && one.naturalWidth)"""
    )
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save(image: Image.Image, path: Path) -> None:
    few = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, kmeans=4, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.name}: {image.width}x{image.height}, {size // 1000} kB")
    assert size < LARGEST, f"{path} is larger than an image in the docs should be"


if __name__ == "__main__":
    main()
