"""The reference of the public API: its topics, names and pages."""

from __future__ import annotations

import functools
import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import griffe

from website.plain_signatures import PlainSignatures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Of several modules' names that are alike, those that the guides mean.
_MEANT = (
    "dragon.native.process.Process",
    "dragon.native.queue.Queue",
    "dragon.native.pool.Pool",
    "dragon.native.lock.Lock",
    "dragon.native.event.Event",
    "dragon.native.semaphore.Semaphore",
    "dragon.native.barrier.Barrier",
    "dragon.native.condition.Condition",
    "dragon.native.process.ProcessTemplate",
    "dragon.infrastructure.errors.DragonError",
)


@dataclass(frozen=True)
class Module:
    """A public module and what it makes public."""

    name: str
    about: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Topic:
    """A page of the reference."""

    file: str
    title: str
    about: str
    guides: tuple[str, ...]
    modules: tuple[Module, ...]


@functools.cache
def package(name: str, source: Path) -> griffe.Module:
    """A package's docstrings and annotations, which are read and not imported."""
    loader = griffe.GriffeLoader(
        search_paths=[source], extensions=griffe.load_extensions(PlainSignatures), docstring_parser=griffe.Parser.google
    )
    loaded = loader.load(name)
    loader.resolve_aliases(implicit=False, external=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def topics(root: Path) -> list[Topic]:
    """The topics of reference.toml with the names of their modules."""
    with (root / "website" / "reference.toml").open("rb") as file:
        tables = tomllib.load(file)["topic"]
    return [
        Topic(
            table["file"],
            table["title"],
            table["about"],
            tuple(table["guides"]),
            tuple(_module(name, root) for name in table["modules"]),
        )
        for table in tables
    ]


def found(name: str, root: Path) -> griffe.Object | griffe.Alias:
    """What a full name stands for."""
    first, _, rest = name.partition(".")
    loaded = package(first, root / "src")
    return loaded[rest] if rest else loaded


def _module(name: str, root: Path) -> Module:
    module = found(name, root)
    names = tuple(str(n) for n in module.exports or () if not str(n).startswith("_"))
    about = module.docstring.value.splitlines()[0] if module.docstring else ""
    return Module(name, about, tuple(n for n in names if _is_ours(module, n)))


def _is_ours(module: griffe.Object | griffe.Alias, name: str) -> bool:
    """Whether the docstring of a name is ours: it is none of another package's, or of the compiled core's."""
    member = module.members.get(name)
    if member is None:
        return False
    if isinstance(member, griffe.Alias):
        try:
            target = member.final_target
        except griffe.AliasResolutionError:
            return False  # one of another package, or of constants that are assigned together
        return target.path.startswith(("dragon.", "torchloader.")) and "._core" not in target.path
    return not (isinstance(member, griffe.Attribute) and _names_another(member))


def _names_another(attribute: griffe.Attribute) -> bool:
    value = str(attribute.value or "")
    return "." in value and value.replace(".", "").isidentifier() and not attribute.docstring


def identifiers(all_topics: Sequence[Topic]) -> dict[str, str]:
    """The full names by what documents call them: the whole name, or its last part where no other name has that."""
    full = [f"{module.name}.{name}" for topic in all_topics for module in topic.modules for name in module.names]
    last = Counter(name.rpartition(".")[2] for name in full)
    called = {name: name for name in full}
    # Constants and functions have the names of too many other things.
    called |= {
        short: name
        for name in full
        if last[short := name.rpartition(".")[2]] == 1 and short[0].isupper() and not short.isupper()
    }
    return called | {name.rpartition(".")[2]: name for name in _MEANT}


def write(all_topics: Sequence[Topic], folder: Path) -> None:
    """Write the page of each topic, and one with all names."""
    folder.mkdir()
    for topic in all_topics:
        (folder / f"{topic.file}.md").write_text(_page(topic))
    (folder / "index.md").write_text(_index(all_topics))


def _page(topic: Topic) -> str:
    guides = ", ".join(f"[{guide.removesuffix('.md')}](../{guide})" for guide in topic.guides)
    text = [f"# Reference: {topic.title}", topic.about, f"Guides: {guides}."]
    for module in topic.modules:
        if not module.names:
            continue
        text.append(f"## {module.name}")
        text.append(module.about)
        for name in module.names:
            text.append(f"::: {module.name}.{name}\n    options:\n      heading_level: 3")
    return "\n\n".join(text) + "\n"


def _index(all_topics: Sequence[Topic]) -> str:
    text = ["# Reference of the API", "All public names, from their docstrings and annotations."]
    for topic in all_topics:
        text += [f"## [{topic.title}]({topic.file}.md)", topic.about]
        rows = ["| module | names |", "|---|---|"]
        for module in topic.modules:
            names = ", ".join(f"[`{name}`][{module.name}.{name}]" for name in module.names)
            rows.append(f"| `{module.name}` | {names} |")
        text.append("\n".join(rows))
    text.append("Other projects link here by `objects.inv`; `llms.txt` and `llms-full.txt` are the site as plain text.")
    return "\n\n".join(text) + "\n"
