"""The page, in a real browser on a real service. A page that logs an error, breaks the content security policy or asks
another host fails its test (see `browser`)."""

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, PHONE, chosen, chromium, dragged, dropped, overflow, pasted, violations, watched
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, expect
from serving import RunningServer, copy_index, mini_model, png, running_server

from genius.data.items import Item
from genius.index.index import Index

Visit = Callable[..., Page]

KEY = "a-key-that-only-this-test-knows"
MARKUP = "<script>alert('x')</script> & \"quotes\""
ODD_IDS = (MARKUP, "../../etc/passwd", "a/b//c", "100 % #1 ?x=y&z", "日本語 ✨ 🦊", "x" * 500)
LONG = "A long story about a red circle. " * 70


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serves `shapes` (which tests may add to), `odd` items, and an `empty` index."""
    folder = tmp_path_factory.mktemp("served")
    missing = folder / "missing.png"
    missing.write_bytes(png("red star"))
    odd = [Item(id, image=png(f"{colour} circle")) for id, colour in zip(ODD_IDS, COLOURS, strict=True)]
    odd.append(Item("markup", text=MARKUP, metadata={"name": MARKUP, "nested": {"a": [1, 2, None]}}))
    odd.append(Item("long", text=LONG))
    odd.append(Item("missing", image=str(missing), metadata={"name": "a lost image"}))
    Index.create(folder / "odd", mini_model()).add(odd)
    missing.unlink()
    Index.create(folder / "empty", mini_model())
    shapes = copy_index(folder)
    with running_server(f"shapes={shapes}", f"odd={folder / 'odd'}", f"empty={folder / 'empty'}") as running:
        yield running


COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    """Opens a path of the page: visit("/?q=red", allowed=[...], viewport=PHONE, color_scheme="dark")."""
    with ExitStack() as open_pages:

        def open_page(path: str = "/", url: str = server.url, **options: Any) -> Page:
            page = open_pages.enter_context(watched(browser, url, **options))
            page.goto(path)
            return page

        yield open_page


def asked(page: Page, act: Callable[[], Any]) -> dict[str, Any]:
    """The service's answer to the search that `act` starts, as soon as the page shows it."""
    with page.expect_response(lambda response: response.url.split("?")[0].endswith("/v1/search")) as got:
        act()
    answer = got.value.json()
    assert got.value.ok, answer
    shows(page, answer)
    return answer


def shows(page: Page, answer: dict[str, Any]) -> None:
    ids = [hit["id"] for hit in answer["hits"]]
    page.wait_for_function(
        """(ids) => {
          const shown = [...document.querySelectorAll("#results [data-id]")].map((one) => one.dataset.id);
          return !document.documentElement.dataset.busy && JSON.stringify(shown) === JSON.stringify(ids);
        }""",
        arg=ids,
    )


def found(visit: Visit, path: str, **options: Any) -> tuple[Page, dict[str, Any]]:
    """The page at the address of a search, and the answer it shows."""
    page = visit("about:blank", **options)
    return page, asked(page, lambda: page.goto(path))


def search(page: Page, words: str) -> dict[str, Any]:
    page.fill("#q", words)
    return asked(page, lambda: page.press("#q", "Enter"))


def sent(page: Page, act: Callable[[], Any]) -> tuple[str, str]:
    """The content type and the body of the search that `act` starts."""
    with page.expect_request(lambda request: request.url.split("?")[0].endswith("/v1/search")) as got:
        act()
    body = got.value.post_data_buffer or b""
    return got.value.headers["content-type"], body.decode(errors="replace")


def hit(page: Page, id: str, within: str = "#results") -> Locator:
    return page.locator(f"{within} [data-id={json.dumps(id, ensure_ascii=False)}]")


def view(page: Page, name: str) -> None:
    expect(page.locator("html")).to_have_attribute("data-view", name)


def first_ids(answer: dict[str, Any], number: int) -> set[str]:
    return {one["id"] for one in answer["hits"][:number]}


# The watch itself


@pytest.mark.parametrize(
    ("script", "event", "complaint"),
    [
        ("fetch('http://example.org/').catch(() => {})", "console", "policy forbids http://example.org"),
        ("location = 'http://example.org/'", "requestfailed", "asked another host: http://example.org/"),
        ("throw new Error('a mistake of the page')", "pageerror", "a mistake of the page"),
        ("eval('1')", "console", "policy forbids eval"),
    ],
    ids=["forbidden", "elsewhere", "exception", "eval"],
)
def test_what_goes_wrong_in_a_page_fails_its_test(
    browser: Browser, server: RunningServer, script: str, event: str, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        go_wrong(browser, server.url, script, event, complaint)


def go_wrong(browser: Browser, url: str, script: str, event: str, complaint: str) -> None:
    """The console may say more than the complaint, and before it."""
    with watched(browser, url) as page:
        page.goto("/")
        with page.expect_event(event, lambda one: event != "console" or complaint in one.text):
            page.evaluate(f"() => {{ setTimeout(() => {{ {script} }}) }}")


# Searching


def test_the_page_is_ready_to_type_and_finds_by_words(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("a red circle")
    answer = asked(page, lambda: page.keyboard.press("Enter"))
    view(page, "results")
    assert "red" in answer["hits"][0]["id"] or "red" in answer["hits"][0]["text"].lower()
    expect(page.locator("#status")).to_have_text(re.compile(rf"^{len(answer['hits'])} results in [\d.]+ ms$"))
    for shown, one in zip(page.locator("#results [data-id]").all(), answer["hits"], strict=True):
        assert shown.get_attribute("data-modality") == one["modality"]
        expect(shown.locator(".score")).to_contain_text(f"{one['score']:.2f}".replace("-", "−"))
    assert page.title().startswith("a red circle")


def test_every_image_of_the_results_is_shown(visit: Visit) -> None:
    page = visit("/?q=shapes&k=12")
    images = page.locator("#results .card-image img")
    expect(images.first).to_be_visible()
    page.wait_for_function(
        """() => [...document.querySelectorAll("#results img")].every((one) =>
            one.scrollIntoView() ?? (one.complete && one.naturalWidth > 0))"""
    )


def test_examples_on_the_start_page_search(visit: Visit) -> None:
    page = visit()
    example = page.locator("[data-example-like]").first
    id = example.get_attribute("data-example-like")
    answer = asked(page, example.click)
    assert answer["hits"][0]["id"] == id
    page.go_back()
    view(page, "home")
    words = page.locator("[data-example-words]").first
    said = words.get_attribute("data-example-words")
    asked(page, words.click)
    expect(page.locator("#q")).to_have_value(said)


def give_by_choosing(page: Page, files: dict[str, bytes]) -> None:
    page.set_input_files("#image", chosen(files))


def give_by_dropping(page: Page, files: dict[str, bytes]) -> None:
    dragged(page, "body", files)
    expect(page.locator("#dropzone")).to_be_visible()
    dropped(page, "body", files)
    expect(page.locator("#dropzone")).to_be_hidden()


def give_by_pasting(page: Page, files: dict[str, bytes]) -> None:
    pasted(page, "#q", files)


@pytest.mark.parametrize("give", [give_by_choosing, give_by_dropping, give_by_pasting])
def test_a_image_finds_the_same_image(visit: Visit, give: Callable[[Page, dict[str, bytes]], None]) -> None:
    page = visit()
    answer = asked(page, lambda: give(page, {"mine.png": png("green triangle")}))
    assert "green-triangle" in answer["hits"][0]["id"]
    expect(page.locator("#query-image")).to_be_visible()
    page.click("#remove-image")
    expect(page.locator("#query-image")).to_be_hidden()
    view(page, "home")


def test_words_and_a_image_are_asked_together(visit: Visit) -> None:
    page = visit()
    asked(page, lambda: page.set_input_files("#image", chosen({"mine.png": png("red star")})))
    page.fill("#q", "the same in blue")
    kind, body = sent(page, lambda: page.press("#q", "Enter"))
    assert kind.startswith("multipart/form-data")
    assert 'name="text"\r\n\r\nthe same in blue' in body
    assert 'name="image"' in body
    expect(page.locator("#query-image")).to_be_visible()
    expect(page.locator("#results [data-id]").first).to_be_visible()


def test_an_item_of_the_index_can_be_asked_with_other_words(visit: Visit) -> None:
    page = visit("/?q=red+star&target=image")
    hit(page, "images/red-star.png").locator(".card-open").click()
    page.click("#item-compose")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("blue")
    _, body = sent(page, lambda: page.keyboard.press("Enter"))
    asked_for = json.loads(body)
    assert (asked_for["like"], asked_for["text"]) == ("images/red-star.png", "blue")


def test_the_target_of_a_search_can_be_chosen(visit: Visit) -> None:
    page = visit("/?q=a+red+circle&k=6")
    expect(page.locator("#results [data-id]").first).to_be_visible()
    for kind in ("image", "text", "image,text"):
        answer = asked(page, page.locator(f"#search label:has(input[name=target][value='{kind}'])").click)
        shown = page.locator("#results [data-id]").evaluate_all("(all) => all.map((one) => one.dataset.modality)")
        assert answer["hits"]
        assert set(shown) == {kind}
        assert f"target={kind.replace(',', '%2C')}" in page.url
    answer = asked(page, page.locator("#search label:has(input[name=target][value=''])").click)
    assert "target" not in page.url


def test_find_similar_searches_with_the_item(visit: Visit) -> None:
    page = visit("/?q=red&target=image&k=12")
    card = hit(page, "images/red-star.png")
    card.hover()
    answer = asked(page, card.locator(".card-similar").click)
    assert answer["hits"][0]["id"] == "images/red-star.png"
    expect(page.locator("#query-image")).to_be_visible()
    assert "like=images" in page.url


def test_options_are_sent(visit: Visit) -> None:
    page = visit("/?q=star&k=4")
    page.click("#options summary")
    page.select_option("#mode", "generate")
    page.fill("#k", "3")
    page.fill("#beam", "20")
    page.fill("#instruction", "Find a drawing.")
    page.fill("#where", "colour = 'blue'")
    _, body = sent(page, lambda: page.press("#where", "Enter"))
    asked_for = json.loads(body)
    settings = {name: asked_for[name] for name in ("mode", "k", "beam", "instruction", "where")}
    assert settings == {
        "mode": "generate",
        "k": 3,
        "beam": 20,
        "instruction": "Find a drawing.",
        "where": "colour = 'blue'",
    }
    shown = page.locator("#results [data-id]")
    expect(shown.first).to_have_attribute("data-id", re.compile("blue"))
    expect(shown).to_have_count(3)


def test_a_budget_is_sent_if_it_is_given(visit: Visit) -> None:
    page = visit("/?q=star")
    page.click("#options summary")
    for budget, expected in (("20", 20), ("", None)):
        page.fill("#budget", budget)
        _, body = sent(page, lambda: page.press("#budget", "Enter"))
        assert json.loads(body)["budget"] == expected
        assert ("budget=20" in page.url) == bool(budget)
        page.click("#options summary")


def test_a_filter_that_nothing_satisfies_can_be_taken_away(visit: Visit) -> None:
    page = visit("/?q=star&where=colour+%3D+'pink'")
    expect(page.locator("#none")).to_be_visible()
    answer = asked(page, page.get_by_role("button", name="without the filter").click)
    assert answer["hits"]
    expect(page.locator("#none")).to_be_hidden()


# How results were found


def test_the_tree_is_the_beam_of_the_answer(visit: Visit) -> None:
    page, answer = found(visit, "/?q=a+blue+square&k=12")
    branches = answer["tree"]["branches"]
    nodes = page.locator("#tree [data-node]")
    expect(nodes.first).to_be_visible()
    drawn = nodes.evaluate_all(
        "(all) => all.map((one) => [one.dataset.node, +one.dataset.items, +one.dataset.logprob])"
    )
    assert len(drawn) == len({prefix for prefix, _, _ in drawn}) > 3
    for prefix, items, logprob in drawn:
        codes = [int(code) for code in prefix.split("-") if code]
        under = [one for one in branches if one["codes"][: len(codes)] == codes]
        assert items == sum(one["items"] for one in under)
        assert logprob == pytest.approx(max(one["logprob"] for one in under))
    ends = {"-".join(map(str, one["codes"])) for one in branches}
    inner = {prefix for prefix, _, _ in drawn if any(other.startswith(f"{prefix}-") for other, _, _ in drawn)}
    leaves = {prefix for prefix, _, _ in drawn if prefix} - inner
    assert leaves <= ends
    assert len(leaves) == len(ends) or len(leaves) >= 10


def test_timing_and_effort_are_those_of_the_answer(visit: Visit) -> None:
    page, answer = found(visit, "/?q=a+blue+square&k=12")
    shown = page.locator("#timing [data-stage]").evaluate_all(
        "(all) => Object.fromEntries(all.map((one) => [one.dataset.stage, +one.dataset.ms / 1000]))"
    )
    told = {stage: seconds for stage, seconds in answer["seconds"].items() if stage != "total"}
    assert shown == pytest.approx(told, abs=1e-5)
    expect(page.locator("#candidates")).to_contain_text(f"{answer['candidates']} of {answer['items']} items")


def test_shared_codes_are_beginnings_that_several_results_have(visit: Visit) -> None:
    page, answer = found(visit, "/?q=a+circle&k=12")
    shared = page.locator("#shared [data-shared]").evaluate_all("(all) => all.map((one) => one.dataset.shared)")
    assert shared
    for prefix in shared:
        having = [one for one in answer["hits"] if f"{'-'.join(map(str, one['codes']))}-".startswith(f"{prefix}-")]
        assert len(having) >= 2


def test_pointing_at_a_code_lights_up_the_results_that_have_it(visit: Visit) -> None:
    page, answer = found(visit, "/?q=a+circle&k=12")
    first = answer["hits"][0]
    hit(page, first["id"]).locator("[data-level='0']").hover()
    kind = str(first["codes"][0])
    highlighted = page.locator("#results [data-level='0'].highlighted")
    lit = highlighted.evaluate_all("(all) => all.map((one) => one.dataset.code)")
    assert set(lit) == {kind}
    assert len(lit) == sum(one["codes"][0] == first["codes"][0] for one in answer["hits"])


def test_a_code_leads_to_everything_that_has_it_and_back(visit: Visit) -> None:
    page, answer = found(visit, "/?q=a+red+circle&k=6")
    first = answer["hits"][0]
    with page.expect_response(lambda response: "/v1/codes/" in response.url) as got:
        hit(page, first["id"]).locator("[data-level='1']").click()
    codes = got.value.json()
    view(page, "codes")
    prefix = first["codes"][:2]
    assert codes["pattern"] == "-".join(map(str, prefix)) == page.url.rpartition("/")[2]
    expect(page.locator("#codes-items [data-id]")).to_have_count(codes["total"])
    expect(page.locator("#codes-lead")).to_contain_text(f"{codes['total']} item")
    shown = page.locator("#codes-items [data-id]").evaluate_all("(all) => all.map((one) => one.dataset.codes)")
    assert all(one.startswith(f"{codes['pattern']}-") for one in shown)
    expect(hit(page, first["id"], "#codes-items")).to_be_visible()
    page.go_back()
    view(page, "results")
    shows(page, answer)
    expect(hit(page, first["id"])).to_be_visible()


def test_the_code_tree_can_be_walked_from_the_root(visit: Visit) -> None:
    page = visit()
    page.click("#browse")
    view(page, "codes")
    kinds = page.locator("#codes-children [data-child]")
    expect(kinds).to_have_count(3)
    page.locator("#codes-children [data-child='1']").click()
    expect(page.locator("#codes-items [data-id]")).to_have_count(10)
    child = page.locator("#codes-children [data-child]").first
    pattern = child.get_attribute("data-child")
    child.click()
    expect(page.locator("#any-prefix-label")).to_be_visible()
    with page.expect_response(lambda response: "/v1/codes/*" in response.url) as got:
        page.check("#any-prefix")
    assert got.value.json()["pattern"] == f"*-{pattern.split('-')[1]}"
    page.locator("#breadcrumb a").first.click()
    expect(kinds).to_have_count(3)
    page.click("#codes-close")
    view(page, "home")


def test_codes_have_names_and_a_map(visit: Visit) -> None:
    page = visit("/#/codes/0")
    expect(page.locator("#codes-children .code-name").first).to_be_visible(timeout=120_000)  # made in the background
    page.click("#codes-as-map")
    expect(page.locator("#codes-children")).to_be_hidden()
    cell = page.locator("[data-cell]").first
    pattern = cell.get_attribute("data-cell")
    name = (cell.get_attribute("aria-label") or "").rsplit(", ", 1)[0]
    cell.click()
    expect(page.locator("#breadcrumb [aria-current]")).to_have_text(name)
    assert page.url.endswith(f"#/codes/{pattern}?map=1")
    page.locator("#breadcrumb a").first.click()
    expect(page.locator(".map-head")).to_have_count(3)
    cells = page.locator("[data-cell]").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().toJSON())")
    assert all(min(cell["width"], cell["height"]) >= 24 for cell in cells)
    page.click("#codes-as-tiles")
    expect(page.locator("#codes-children [data-child]")).to_have_count(3)


def test_a_search_stays_inside_a_branch_until_it_is_widened(visit: Visit) -> None:
    page = visit("/#/codes/1")
    page.click("#codes-inside")
    view(page, "home")
    expect(page.locator("#branch-name")).to_have_text("Only in: Texts")
    answer = search(page, "a red circle")
    assert {one["codes"][0] for one in answer["hits"]} == {1}
    assert "branch=1" in page.url
    asked(page, page.reload)
    expect(page.locator("#branch")).to_be_visible()
    wider = asked(page, lambda: page.click("#remove-branch"))
    assert len(wider["hits"]) >= len(answer["hits"])
    assert "branch" not in page.url
    expect(page.locator("#branch")).to_be_hidden()


def test_a_result_says_why_it_was_found(visit: Visit) -> None:
    page, answer = found(visit, "/?q=a+red+circle&k=12")
    first = answer["hits"][0]
    hit(page, first["id"]).locator(".card-open").click()
    reasons = page.locator("#item-why [data-reason]")
    expect(reasons.first).to_contain_text("generated for your query")
    prefixes = reasons.evaluate_all("(all) => all.map((one) => one.dataset.reason)")
    assert prefixes == ["-".join(map(str, first["codes"][: level + 1])) for level in range(len(prefixes))]
    others = sum(one["codes"][0] == first["codes"][0] for one in answer["hits"]) - 1
    expect(reasons.first).to_contain_text(f"shared with {others} other result")
    reasons.first.locator("a").click()
    view(page, "codes")


# Changing the index


def test_dropped_files_are_added_found_and_deleted(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#add-open")).to_be_visible()  # the page knows that items can be added
    files = {
        "brown-square.png": png("brown square"),
        "note.txt": b"A walk along the river in autumn.",
        "song.mp3": b"ID3",
    }
    dropped(page, "body", files)
    rows = page.locator("#add [data-file]")
    expect(rows).to_have_count(3)
    expect(page.locator("[data-file='song.mp3'] .add-problem")).to_be_visible()
    page.click("[data-file='song.mp3'] .add-remove")
    page.fill("[data-file='brown-square.png'] .add-text", "A box made of wood.")
    page.click("#add-start")
    expect(page.locator("#add-report")).to_contain_text("2 items added")
    page.click("#add-show")
    view(page, "items")
    expect(page.locator("#items-list [data-id]")).to_have_count(2)
    expect(hit(page, "brown-square.png", "#items-list")).to_have_attribute("data-modality", "image,text")

    assert search(page, "walking beside a river in autumn")["hits"][0]["id"] == "note.txt"
    asked(page, page.locator("#search label:has(input[name=target][value='image,text'])").click)
    assert "brown-square.png" in first_ids(search(page, "a wooden box"), 3)
    for id in ("note.txt", "brown-square.png"):
        delete(visit(f"/#/items?id={id}"), id)
    page.goto("/?q=river+in+autumn")
    expect(page.locator("#results [data-id]").first).to_be_visible()
    expect(hit(page, "note.txt")).to_have_count(0)


def delete(page: Page, id: str) -> None:
    """By a page of its own: one that closes a dialog goes back in its history a moment later."""
    hit(page, id, "#items-list").locator(".card-open").click()
    page.click("#item-delete")
    page.click("#item-delete-sure")
    expect(page.locator("#item")).to_be_hidden()
    expect(page.locator("#toast")).to_contain_text(id)
    expect(hit(page, id, "#items-list")).to_have_count(0)


def test_one_dropped_image_can_be_added_instead(visit: Visit) -> None:
    page = visit()
    expect(page.locator("#add-open")).to_be_visible()  # the page knows that items can be added
    asked(page, lambda: dropped(page, "body", {"red.png": png("red circle")}))
    page.click("#add-instead")
    expect(page.locator("#add [data-file='red.png']")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#add")).to_be_hidden()


def test_a_file_that_is_no_image_is_reported_by_its_row(visit: Visit) -> None:
    page = visit()
    page.click("#add-open")
    page.set_input_files("#add-files", chosen({"broken.png": b"not an image at all"}))
    page.click("#add-start")
    expect(page.locator("[data-file='broken.png'] .add-problem")).to_be_visible()
    expect(page.locator("#add-report")).to_contain_text("1 could not be added")
    expect(page.locator("#add-show")).to_be_hidden()


# When something is wrong


def test_a_filter_that_cannot_be_used_shows_what_the_service_says(visit: Visit) -> None:
    page = visit(allowed=["status of 4"])
    with page.expect_response(lambda response: "/v1/search" in response.url) as got:
        page.goto("/?q=star&where=no_such_field+%3D+1")
    said = got.value.json()["error"]["message"]
    assert "no_such_field" in said
    expect(page.locator("#error")).to_be_visible()
    expect(page.locator("#error-message")).to_have_text(said)
    expect(page.locator("#results [data-id]")).to_have_count(0)


def test_a_image_that_cannot_be_read_shows_what_the_service_says(visit: Visit) -> None:
    page = visit(allowed=["status of 4"])
    with page.expect_response(lambda response: "/v1/search" in response.url) as got:
        page.set_input_files("#image", chosen({"broken.png": b"not an image at all"}))
    expect(page.locator("#error-message")).to_have_text(got.value.json()["error"]["message"])
    page.click("#remove-image")
    assert search(page, "a red circle")["hits"]
    expect(page.locator("#error")).to_be_hidden()


def test_a_image_of_too_many_pixels_is_refused_with_a_sentence(visit: Visit) -> None:
    page = visit(allowed=["status of 4"])
    out = io.BytesIO()
    Image.new("1", (8000, 8000)).save(out, "PNG")
    page.set_input_files("#image", chosen({"huge.png": out.getvalue()}))
    expect(page.locator("#error-message")).to_contain_text(re.compile("pixels|large", re.IGNORECASE))


def test_a_large_photo_is_made_smaller_before_it_is_sent(visit: Visit) -> None:
    page = visit()
    out = io.BytesIO()
    Image.effect_noise((1200, 1200), 90).convert("RGB").save(out, "PNG")
    assert len(out.getvalue()) > 3_000_000
    _, body = sent(page, lambda: page.set_input_files("#image", chosen({"photo.png": out.getvalue()})))
    assert len(body) < 2_000_000
    expect(page.locator("#results [data-id]").first).to_be_visible()


def test_an_unknown_item_to_start_from_is_an_error_with_words(visit: Visit) -> None:
    page = visit("/?like=nothing-of-that-name", allowed=["status of 404"])
    expect(page.locator("#error-message")).to_contain_text("nothing-of-that-name")


def test_a_key_is_asked_for_and_a_service_that_stops_is_reported(visit: Visit, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"read {KEY}\n")
    keys.chmod(0o600)
    with running_server(copy_index(tmp_path), options=("--keys", str(keys))) as guarded:
        page = visit("/?q=a+red+circle", url=guarded.url, allowed=["status of 401", "net::ERR_"])
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key", "wrong")
        page.click("#key-save")
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key", KEY)
        answer = asked(page, lambda: page.click("#key-save"))
        expect(page.locator("#key-dialog")).to_be_hidden()
        expect(page.locator("#index-facts")).to_contain_text("42 items")
        expect(page.locator("#add-open")).to_be_hidden()
        shown = next(one["id"] for one in answer["hits"] if one["image_url"])
        image = hit(page, shown).locator("img")
        image.scroll_into_view_if_needed()
        expect(image).to_have_attribute("src", re.compile("^blob:"))
        expect(image).to_have_js_property("complete", True)
        assert KEY not in page.url
        page.wait_for_load_state("networkidle")  # no image is still loading
        guarded.process.kill()
        guarded.process.wait()
        page.fill("#q", "a green square")
        page.press("#q", "Enter")
        expect(page.locator("#error")).to_be_visible()
        expect(page.locator("#error")).to_contain_text("cannot be reached")
        expect(page.locator("#retry")).to_be_visible()


def test_while_a_search_takes_its_time_the_page_says_so(visit: Visit) -> None:
    page = visit()
    held: list[Route] = []
    page.route("**/v1/search*", lambda route: held.append(route))
    page.fill("#q", "red")
    page.press("#q", "Enter")
    expect(page.locator("#skeleton")).to_be_visible()
    expect(page.locator("html")).to_have_attribute("data-busy", "true")
    held[0].continue_()
    expect(page.locator("#results [data-id]").first).to_be_visible()
    expect(page.locator("#skeleton")).to_be_hidden()


def test_a_search_that_failed_can_be_tried_again(visit: Visit) -> None:
    page = visit(allowed=["ERR_FAILED"])
    page.route("**/v1/search*", lambda route: route.abort(), times=1)
    page.fill("#q", "red")
    page.press("#q", "Enter")
    expect(page.locator("#error")).to_contain_text("cannot be reached")
    asked(page, lambda: page.click("#retry"))
    expect(page.locator("#error")).to_be_hidden()


def test_a_busy_service_is_asked_again_by_itself(visit: Visit) -> None:
    page = visit(allowed=["status of 503"])
    busy = {"error": {"code": "busy", "message": "Too many questions wait.", "field": None}}
    answer = {"status": 503, "json": busy, "headers": {"Retry-After": "1"}}
    page.route("**/v1/search*", lambda route: route.fulfill(**answer), times=1)
    page.fill("#q", "red")
    page.press("#q", "Enter")
    expect(page.locator("#error-message")).to_have_text("Too many questions wait.")
    expect(page.locator("#results [data-id]").first).to_be_visible()
    expect(page.locator("#error")).to_be_hidden()


def test_only_the_last_of_two_quick_searches_is_shown(visit: Visit) -> None:
    page = visit()
    held: list[Route] = []
    page.route("**/v1/search*", lambda route: held.append(route), times=1)
    page.fill("#q", "tomato soup")
    page.press("#q", "Enter")
    answer = search(page, "a red circle")
    held[0].abort()
    shows(page, answer)
    expect(page.locator("#error")).to_be_hidden()


# Data of every kind


def test_odd_names_and_texts_are_shown_as_they_are(visit: Visit) -> None:
    page = visit("/?q=a+red+circle&index=odd", allowed=["status of 404"], viewport=PHONE)
    shown = page.locator("#results [data-id]")
    expect(shown).to_have_count(len(ODD_IDS) + 3)
    assert {*ODD_IDS, "markup", "long", "missing"} == set(
        shown.evaluate_all("(all) => all.map((one) => one.dataset.id)")
    )
    expect(hit(page, "missing")).to_contain_text("cannot be shown")
    assert overflow(page) == []
    for id in ODD_IDS:
        hit(page, id).locator(".card-open").click()
        expect(page.locator("#item")).to_be_visible()
        expect(page.locator("#item-metadata")).to_contain_text(id)
        page.wait_for_function("() => document.getElementById('item-image').naturalWidth > 0")
        page.keyboard.press("Escape")
        expect(page.locator("#item")).to_be_hidden()


def test_odd_names_can_be_searched_with(visit: Visit) -> None:
    page = visit("/?q=a+red+circle&index=odd&k=9", allowed=["status of 404"])
    for id in ODD_IDS:
        card = hit(page, id)
        card.hover()
        answer = asked(page, card.locator(".card-similar").click)
        assert answer["hits"][0]["id"] == id
    page.reload()
    shows(page, answer)


def test_an_index_can_be_chosen_and_may_be_empty(visit: Visit) -> None:
    page = visit(allowed=["status of 404"])
    expect(page.locator("#index")).to_be_visible()
    expect(page.locator("#index")).to_have_value("shapes")
    page.select_option("#index", "empty")
    expect(page.locator("#home-empty")).to_be_visible()
    expect(page.locator("[data-example-like]")).to_have_count(0)
    dropped(page, "body", {"first.png": png("red star")})
    expect(page.locator("#add [data-file='first.png']")).to_be_visible()
    page.keyboard.press("Escape")
    search(page, "anything")
    expect(page.locator("#none")).to_be_visible()
    answer = asked(page, lambda: page.select_option("#index", "odd"))
    assert answer["index"] == "odd"
    assert "index=odd" in page.url


# The address


def test_reload_and_history_keep_what_was_asked(visit: Visit) -> None:
    page = visit()
    first = search(page, "a red circle")
    second = search(page, "tomato soup")
    page.reload()
    shows(page, second)
    page.go_back()
    shows(page, first)
    expect(page.locator("#q")).to_have_value("a red circle")
    page.go_back()
    view(page, "home")
    expect(page.locator("#q")).to_have_value("")
    page.go_forward()
    shows(page, first)


def test_back_closes_a_dialog_and_keeps_the_results(visit: Visit) -> None:
    page = visit("/?q=red&k=4")
    page.locator("#results .card-open").first.click()
    expect(page.locator("#item")).to_be_visible()
    page.go_back()
    expect(page.locator("#item")).to_be_hidden()
    view(page, "results")
    assert "q=red" in page.url


def test_an_address_with_nonsense_in_it_still_shows_a_page(visit: Visit) -> None:
    page = visit("/?q=red&k=abc&mode=dance&target=smell&beam=-3#/nowhere")
    expect(page.locator("#results [data-id]").first).to_be_visible()


# Everybody


def test_a_result_can_be_opened_and_closed_by_keyboard_alone(visit: Visit) -> None:
    page = visit()
    page.keyboard.type("red")
    answer = asked(page, lambda: page.keyboard.press("Enter"))
    focused = page.locator(":focus")
    for _ in range(30):
        if focused.evaluate("(one) => one.matches('#results .card-open')"):
            break
        page.keyboard.press("Tab")
    expect(hit(page, answer["hits"][0]["id"]).locator(".card-open")).to_be_focused()
    page.keyboard.press("ArrowRight")
    second = hit(page, answer["hits"][1]["id"]).locator(".card-open")
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#item")).to_be_visible()
    assert page.evaluate("() => document.getElementById('item').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(page.locator("#item")).to_be_hidden()
    expect(second).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()


def test_the_tree_can_be_walked_by_keyboard(visit: Visit) -> None:
    page = visit("/?q=red&k=4")
    page.locator("#tree [data-node='']").focus()
    page.keyboard.press("ArrowRight")
    prefix = page.locator(":focus").get_attribute("data-node")
    assert prefix
    page.keyboard.press("Enter")
    view(page, "codes")
    assert page.url.endswith(f"#/codes/{prefix}")
    expect(page.locator("#codes-title")).to_be_focused()
    page.keyboard.press("Escape")
    view(page, "results")


VIEWS = {
    "home": "/",
    "results": "/?q=a+red+circle&k=4",
    "codes": "/#/codes/2",
    "map": "/#/codes?map=1",
    "error": "/?q=red&where=no_such_field+%3D+1",
}


@pytest.mark.parametrize("window", [DESKTOP, pytest.param(PHONE, marks=pytest.mark.slow)], ids=["desktop", "phone"])
def test_nothing_stands_in_the_way_of_anybody(visit: Visit, window: dict[str, int]) -> None:
    page = visit(allowed=["status of 4"], viewport=window, reduced_motion="reduce")
    for name, path in VIEWS.items():
        page.goto("about:blank")
        page.goto(path)
        arrived(page, name)
        assert overflow(page) == [], name
        assert violations(page) == [], name
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def arrived(page: Page, name: str) -> None:
    places = {"home": "[data-example-like]", "codes": "#codes-items [data-id]", "map": "[data-cell]", "error": "#error"}
    shown = places.get(name, "#results [data-id]")
    expect(page.locator(shown).first).to_be_visible()
    page.wait_for_function("() => !document.documentElement.dataset.busy")


def test_dialogs_and_panels_stand_in_nobodys_way(visit: Visit) -> None:
    page = visit("/?q=a+red+circle&k=6", viewport=PHONE, reduced_motion="reduce")
    page.click("#how-toggle")
    expect(page.locator("#tree")).to_be_visible()
    assert overflow(page) == []
    assert violations(page) == []
    page.click("#options summary")
    assert overflow(page) == []
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.locator("#results .card-open").first.click()
    page.click("#item-delete")
    assert overflow(page) == []
    assert violations(page) == []
    page.keyboard.press("Escape")
    dropped(page, "body", {"a.png": png("red circle"), "b.txt": b"words"})
    expect(page.locator("#add [data-file]")).to_have_count(2)
    assert overflow(page) == []
    assert violations(page) == []


def test_what_is_touched_on_a_phone_is_large_enough(visit: Visit) -> None:
    page = visit("/?q=a+red+circle&k=6", viewport=PHONE, has_touch=True, is_mobile=True)
    expect(page.locator("#results [data-id]").first).to_be_visible()
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, summary, .segments label, select")]
            .filter((one) => one.checkVisibility() && one.offsetWidth)
            .filter((one) => one.offsetHeight < 32 || one.offsetWidth < 32)
            .map((one) => `${one.id || one.className} ${one.offsetWidth}x${one.offsetHeight}`)"""
    )
    assert small == []


def test_the_colours_can_be_changed_and_stay(visit: Visit) -> None:
    page = visit(color_scheme="light")
    root = page.locator("html")
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    expect(root).to_have_attribute("data-theme", "dark")
    page.wait_for_function(f"(light) => ({background})() !== light", arg=light)
    page.reload()
    expect(root).to_have_attribute("data-theme", "dark")


def test_nothing_moves_for_those_who_asked_for_it(visit: Visit) -> None:
    page = visit("/?q=red&k=4", reduced_motion="reduce")
    expect(page.locator("#results [data-id]").first).to_be_visible()
    moving = page.evaluate(
        """() => [...document.querySelectorAll("body, body *")].filter((one) => {
            const style = getComputedStyle(one);
            const moves = (list) => list.split(",").some((text) => parseFloat(text) > 0.01);
            const animated = style.animationName !== "none" && moves(style.animationDuration);
            return animated || moves(style.transitionDuration);
          }).map((one) => one.id || one.className?.baseVal || one.className)"""
    )
    assert moving == []


def test_the_page_needs_nothing_but_its_own_server(visit: Visit) -> None:
    page = visit("/?q=red&k=4")
    expect(page.locator("#results [data-id]").first).to_be_visible()
    hosts = page.evaluate(
        "() => [...new Set(performance.getEntriesByType('resource').map((one) => new URL(one.name).host))]"
    )
    assert hosts == [page.evaluate("() => location.host")]


def test_the_reference_of_the_interface_can_try_a_search(visit: Visit) -> None:
    page = visit("/docs#search")
    expect(page.locator("details.operation").first).to_be_visible()
    page.locator("#search button").first.click()
    expect(page.locator("#search")).to_contain_text("200 OK")
    assert overflow(page) == []
    assert violations(page) == []
