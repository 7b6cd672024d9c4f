"""Find dead links of the built website."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

_LINKING = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "srcset"}


class _Targets(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if target := given.get(_LINKING.get(tag, "")):
            self.links.append(target)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}


@cache
def _targets(page: Path) -> _Targets:
    targets = _Targets()
    targets.feed(page.read_text())
    return targets


def dead(site: Path) -> list[str]:
    """Return each link within the website whose file or anchor does not exist, with its page."""
    _targets.cache_clear()
    return [
        f"{page.relative_to(site)}: {link}"
        for page in sorted(site.rglob("*.html"))
        if page.name != "404.html"  # its links are relative to the host's root, which is not known here
        for link in dict.fromkeys(_targets(page).links)
        if not _leads_somewhere(link, page, site)
    ]


def _leads_somewhere(link: str, page: Path, site: Path) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True
    target = page
    if parts.path:
        base = site if parts.path.startswith("/") else page.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_file() or not target.is_relative_to(site):
        return False
    return not parts.fragment or target.suffix != ".html" or unquote(parts.fragment) in _targets(target).anchors
