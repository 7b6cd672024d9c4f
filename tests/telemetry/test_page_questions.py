"""The requests of the page of a run if the reader selects something else before a reply arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import serving
from test_tasks import until_counted

from conftest import Site

PROGRAM = """
import sys, time
from dragon.native.pool import Pool

if __name__ == "__main__":
    with Pool(1) as pool:
        pool.map(time.sleep, [0.02] * 4, chunksize=1)
        print("told", flush=True)
        sys.stdin.read()
"""
# Let the page ask only what the test makes it ask, and hold the first answer until something was chosen.
CHOOSE_WHILE = """async (question) => {
  Object.defineProperty(document, "hidden", { value: true });
  while (page.busy) await new Promise((resume) => setTimeout(resume, 10));
  const ask = page.source[question].bind(page.source);
  const asked = [];
  let answer;
  const held = new Promise((resume) => (answer = resume));
  const open = new Promise((resume) => {
    page.source[question] = async (...parameters) => {
      asked.push(parameters);
      resume();
      await held;
      return ask(...parameters);
    };
  });
  page.look();
  await open;
  CHOOSE;
  await new Promise((resume) => setTimeout(resume, 2 * SETTLED));
  answer();
  while (page.busy) await new Promise((resume) => setTimeout(resume, 10));
  return asked;
}"""


@pytest.fixture
def page(site: Site, browser: Any) -> Iterator[Any]:
    """The page of a run at level 5 that has done four tasks."""
    with serving(site, "told", "--dashboard", "-T", "5", site.write(PROGRAM)) as link:
        until_counted(link, {("sleep", False): 4})
        browser.set_viewport_size({"width": 1280, "height": 5000})  # all of it is on the screen
        browser.goto(link)
        browser.locator("#timeline[data-tasks='4']").wait_for()
        yield browser


def questions_while(page: Any, question: str, choose: str) -> list[list[Any]]:
    """Return the parameters of all requests of this kind; `choose` is executed while the first one is pending."""
    asked: list[list[Any]] = page.evaluate(CHOOSE_WHILE.replace("CHOOSE", choose), question)
    return asked


def test_an_interval_selected_during_a_request_for_tasks_is_requested_next(page: Any) -> None:
    choose = "page.timeline.zoom({ from: page.run.now - 0.01, to: page.run.now })"
    whole, chosen = questions_while(page, "tasks", choose)
    assert whole[0] < chosen[0] == page.evaluate("page.timeline.shown.from")
    assert page.locator("#timeline").get_attribute("data-tasks") == "0"


def test_a_window_selected_during_a_request_for_metrics_is_requested_completely(page: Any) -> None:
    questions = questions_while(page, "query", "byId('window').value = '600'; byId('window').onchange()")
    first, *_, last = [since for metrics, since, _ in questions if "cpu_percent" in metrics]
    assert last == pytest.approx(page.evaluate("page.run.now") - 600, abs=60)
    assert first > last + 400
