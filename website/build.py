"""Build the website from docs/, the pages at the root and the docstrings: `python -m website.build FOLDER`.

The build fails on any warning of the generator and on any dead link, anchor or picture.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from website import commands, inventory, links, notebooks, pages, reference, texts

ROOT = Path(__file__).parents[1]
HERE = ROOT / "website"
_LISTED = 20  # number of dead links that are shown


def build(stage: Path) -> Path:
    """Build the site anew.

    Args:
        stage: a folder of its own, for what the generator reads and for the site; what is in it is removed.

    Returns:
        The folder of its HTML.

    Raises:
        SystemExit: the generator has a warning, a link is dead, or the package is not installed.
    """
    shutil.rmtree(stage, ignore_errors=True)
    placed = stage / "pages"
    placed.mkdir(parents=True)
    topics = reference.topics(ROOT)
    staged = pages.stage(ROOT, placed, reference.identifiers(topics))
    _add_notebooks(placed / "tutorials")
    reference.write(topics, ROOT, placed / "reference")
    (placed / "reference" / "commands.md").write_text(commands.page())
    for file in ("site.css", "mark.svg"):
        shutil.copy(HERE / file, placed)
    shutil.copy(HERE / "plain_signatures.py", stage)
    settings = (HERE / "zensical.toml").read_text().replace("SOURCE", str(ROOT / "src"))
    navigation = "".join(f'    {{ "{topic.title}" = "reference/{topic.file}.md" }},\n' for topic in topics)
    (stage / "zensical.toml").write_text(settings.replace("REFERENCE\n", navigation))
    _generate(stage)
    site = stage / "site"
    _use_own_search(site)
    inventory.complete(site / "objects.inv", reference.version(ROOT), reference.others(topics))
    (site / "llms.txt").write_text(texts.overview(staged, topics))
    (site / "llms-full.txt").write_text(texts.whole(staged, topics) + "\n" + commands.page())
    if dead := links.dead(site):
        raise SystemExit("\n".join([f"{len(dead)} links of the site lead nowhere:", *dead[:_LISTED]]))
    return site


def _add_notebooks(tutorials: Path) -> None:
    """Place each tutorial as a notebook beside its page, which links to it below its title."""
    for page in tutorials.glob("*.md"):
        text = page.read_text()
        page.with_suffix(".ipynb").write_text(notebooks.notebook(text))
        title, rest = text.split("\n", 1)
        page.write_text(f"{title}\n\n[Download this tutorial as a notebook]({page.stem}.ipynb)\n{rest}")


def _generate(stage: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=stage, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    # griffe's warnings about docstrings do not fail a strict build.
    said = [line for line in done.stdout.splitlines() if line.startswith(("griffe:", "mkdocstrings:", "WARNING"))]
    if done.returncode or said:
        raise SystemExit(done.stdout)


def _use_own_search(site: Path) -> None:
    """Replace the generator's search, which finds only pages with all words of a query, by search.js."""
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    shutil.copy(HERE / "search.js", worker)


if __name__ == "__main__":
    print(f"built {build(Path(sys.argv[1]).resolve()) / 'index.html'}")
