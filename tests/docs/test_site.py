"""The website: its links, the public names of its reference, and its search."""

from __future__ import annotations

import csv
import functools
import html
import http.server
import importlib
import importlib.util
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragon

ROOT = Path(__file__).parents[2]
# It is public in dragonhpc under this name.
PUBLIC = {"_ARG_PAYLOAD"}
# The pages that answer each of these questions, as users would type them, are in the second column.
QUESTIONS = Path(__file__).with_name("questions.csv")
FOUND_FIRST, OF_QUESTIONS = 3, 0.95

# Asks the search of a page's site, as its search box does; the addresses of the first results for each question.
ASK = """
async (questions) => {
  const settings = JSON.parse(document.querySelector("#__config").textContent);
  const index = await (await fetch("search.json")).json();
  const worker = new Worker(settings.search);
  const send = (message) => new Promise((resolve) => {
    worker.onmessage = ({data}) => resolve(data);
    worker.postMessage(message);
  });
  await send({type: 0, data: index});
  const answers = [];
  for (const input of questions) {
    const answer = await send({type: 2, data: {input}});
    answers.push(answer.data.items.map((item) => index.items[item.id].location));
  }
  worker.terminate();
  return answers;
}
"""

pytestmark = pytest.mark.xdist_group("site")  # it is built once


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site and return its folder."""
    for module in ("zensical", "mkdocstrings_handlers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip("the generator of the site is not installed: pip install --group docs")
    stage = tmp_path_factory.mktemp("website")
    command = [sys.executable, "-m", "website.build", str(stage)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return stage / "site"


def text_of(page: Path) -> str:
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", body))


def test_every_page_of_the_repository_is_in_the_navigation() -> None:
    navigation = (ROOT / "website" / "zensical.toml").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f'"{page}"' not in navigation] == []


def test_the_reference_has_every_public_name(built: Path) -> None:
    inventory = importlib.import_module("website.inventory")
    reference = importlib.import_module("website.reference")
    known = {line.split(" ", 1)[0] for line in inventory.entries(built / "objects.inv")}
    topics = reference.topics(ROOT)
    names = [f"{module.name}.{name}" for topic in topics for module in topic.modules for name in module.names]
    assert len(names) > 200
    assert [name for name in names if name not in known] == []
    assert [name for name in known if "._" in name] == []
    assert f"# Version: {dragon.__version__}\n".encode() in (built / "objects.inv").read_bytes()


def test_the_reference_has_every_class_and_function_of_its_modules() -> None:
    pytest.importorskip("griffe")
    reference = importlib.import_module("website.reference")
    for module in (module for topic in reference.topics(ROOT) for module in topic.modules):
        if module.name == "dragon.native.results":
            continue  # it has a few public names only
        try:
            imported = importlib.import_module(module.name)
        except ImportError:
            continue  # an extra that is not installed
        for name in set(imported.__all__) - set(module.names) - module.again.keys():
            thing = getattr(imported, name)
            ours = getattr(thing, "__module__", "").startswith(("dragon.", "torchloader"))
            assert not (ours and callable(thing)) or thing.__module__ == "dragon._core", f"{module.name}.{name}"


def test_the_reference_shows_no_private_name(built: Path) -> None:
    for page in set((built / "reference").rglob("index.html")) - {built / "reference" / "commands" / "index.html"}:
        found = set(re.findall(r"(?<![\w-])_[A-Za-z]\w*", text_of(page))) - PUBLIC
        assert found == set(), page


def test_guides_link_to_the_reference(built: Path) -> None:
    page = (built / "queues_and_pools" / "index.html").read_text()
    assert "reference/errors/#dragon.infrastructure.errors.NodeLostError" in page


def test_the_text_files_of_the_site_are_complete(built: Path) -> None:
    overview, whole = (built / "llms.txt").read_text(), (built / "llms-full.txt").read_text()
    for address in re.findall(r"\]\((.*?)\)", overview):
        assert (built / address / "index.html").exists(), address
    assert "### dragon.native.queue.Queue(maxsize: int = 100" in whole
    assert "dragon doctor RUN" in whole


@pytest.fixture
def shown(built: Path, browser: Any) -> Iterator[Any]:
    """The first page of the site in a browser."""
    handler = functools.partial(Quiet, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.goto(f"http://127.0.0.1:{server.server_port}/")
        yield browser
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that does not log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_search_answers_questions_of_users(shown: Any) -> None:
    with QUESTIONS.open(newline="") as file:
        questions = [(row["question"], set(row["pages"].split())) for row in csv.DictReader(file)]
    assert len(questions) == 158
    answers = shown.evaluate(ASK, [question for question, _ in questions])
    missed = [
        f"{question}: {found[:FOUND_FIRST]}"
        for (question, right), found in zip(questions, answers, strict=True)
        if right.isdisjoint(address.partition("#")[0].rstrip("/") for address in found[:FOUND_FIRST])
    ]
    assert len(missed) <= (1 - OF_QUESTIONS) * len(questions), "\n".join(missed)


def test_the_pages_of_the_questions_exist(built: Path) -> None:
    with QUESTIONS.open(newline="") as file:
        pages = {page for row in csv.DictReader(file) for page in row["pages"].split()}
    assert [page for page in pages if not (built / page / "index.html").exists()] == []


def test_the_search_box_shows_the_results(shown: Any) -> None:
    shown.wait_for_load_state("networkidle")  # the index is there, and so are the handlers of keys
    shown.keyboard.press("Control+k")
    shown.get_by_role("combobox").fill("map() never returns")
    found = shown.locator("[role=option]").first
    found.wait_for()
    assert "/errors/" in found.get_attribute("href")
    assert shown.locator("[role=option] u").count() > 0  # words of the question are marked


def test_pages_are_not_wider_than_a_narrow_screen(shown: Any) -> None:
    shown.set_viewport_size({"width": 400, "height": 800})
    first = shown.url
    for page in ("", "gallery/", "errors/", "reference/processes/"):
        shown.goto(first + page)
        assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page


def test_signatures_wrap(shown: Any) -> None:
    first = shown.url
    for page in ("dictionary", "processes", "low_level"):
        shown.goto(f"{first}reference/{page}/")
        too_wide = "[...document.querySelectorAll('.doc-signature code')].filter(c => c.scrollWidth > c.clientWidth)"
        assert shown.evaluate(f"{too_wide}.map(c => c.textContent)") == []


def test_all_tabs_are_visible_on_a_screen_of_1280_pixels(shown: Any) -> None:
    shown.set_viewport_size({"width": 1280, "height": 800})
    tabs = shown.locator(".md-tabs__item")
    last = tabs.nth(tabs.count() - 1)
    assert last.inner_text() == "Project"
    box = last.bounding_box()
    assert box["x"] + box["width"] <= 1280
