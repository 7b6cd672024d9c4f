"""The site is built without a warning or a dead link, has every public name and no private one."""

from __future__ import annotations

import html
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# It is public in dragonhpc under this name.
PUBLIC = {"_ARG_PAYLOAD"}

pytestmark = pytest.mark.xdist_group("site")  # it is built once


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
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


def test_the_reference_leaves_out_no_class_or_function_of_ours() -> None:
    pytest.importorskip("griffe")
    reference = importlib.import_module("website.reference")
    for module in (module for topic in reference.topics(ROOT) for module in topic.modules):
        try:
            imported = importlib.import_module(module.name)
        except ImportError:
            continue  # an extra that is not installed
        for name in set(imported.__all__) - set(module.names):
            thing = getattr(imported, name)
            ours = getattr(thing, "__module__", "").startswith(("dragon.", "torchloader"))
            assert not (ours and callable(thing)) or thing.__module__ == "dragon._core", f"{module.name}.{name}"


def test_the_reference_shows_no_private_name(built: Path) -> None:
    for page in (built / "reference").rglob("index.html"):
        found = set(re.findall(r"(?<![\w-])_[A-Za-z]\w*", text_of(page))) - PUBLIC
        assert found == set(), page


def test_guides_link_to_the_reference(built: Path) -> None:
    page = (built / "queues_and_pools" / "index.html").read_text()
    assert "reference/errors/#dragon.infrastructure.errors.NodeLostError" in page


def test_the_site_as_text(built: Path) -> None:
    overview, whole = (built / "llms.txt").read_text(), (built / "llms-full.txt").read_text()
    for address in re.findall(r"\]\((.*?)\)", overview):
        assert (built / address / "index.html").exists(), address
    assert "### dragon.native.queue.Queue(maxsize: int = 100" in whole
    assert "dragon doctor RUN" in whole
