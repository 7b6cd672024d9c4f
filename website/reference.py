"""The reference of the public API: its topics, names and pages."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import griffe

from website.plain_signatures import PlainSignatures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# If several modules have a name in common, the one that the guides mean.
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
    """A public module and its public names: those that are described there, and aliases of names described
    elsewhere.
    """

    name: str
    about: str
    names: tuple[str, ...]
    again: Mapping[str, str]


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
    """Load a package's docstrings and annotations, which are read without importing the package."""
    loader = griffe.GriffeLoader(
        search_paths=[source], extensions=griffe.load_extensions(PlainSignatures), docstring_parser=griffe.Parser.google
    )
    loaded = loader.load(name)
    loader.resolve_aliases(implicit=False, external=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def topics(root: Path) -> list[Topic]:
    """Return the topics of reference.toml with the names of their modules."""
    with (root / "website" / "reference.toml").open("rb") as file:
        tables = tomllib.load(file)["topic"]
    first: dict[str, str] = {}  # objects that have a name in the reference, by the path of their definition
    return [
        Topic(
            table["file"],
            table["title"],
            table["about"],
            tuple(table["guides"]),
            tuple(
                _module(name, only, root, first)
                for name, only in [*((name, None) for name in table["modules"]), *table.get("parts", {}).items()]
            ),
        )
        for table in tables
    ]


def found(name: str, root: Path) -> griffe.Object | griffe.Alias:
    """Return the object that a full name stands for."""
    first, _, rest = name.partition(".")
    loaded = package(first, root / "src")
    return loaded[rest] if rest else loaded


def version(root: Path) -> str:
    """Return the version of the package."""
    found_version = package("dragon", root / "src")["__version__"]
    return str(ast.literal_eval(str(found_version.value)))


def _module(name: str, only: Sequence[str] | None, root: Path, first: dict[str, str]) -> Module:
    module = found(name, root)
    public = only or [str(n) for n in module.exports or () if not str(n).startswith("_")]
    about = module.docstring.value.splitlines()[0] if module.docstring else ""
    names, again = [], {}
    for each in (n for n in public if _is_ours(module, n)):
        known = first.setdefault(module.members[each].canonical_path, f"{name}.{each}")
        if known == f"{name}.{each}":
            names.append(each)
        else:
            again[each] = known
    return Module(name, about, tuple(names), again)


def _is_ours(module: griffe.Object | griffe.Alias, name: str) -> bool:
    """Return whether the docstring of a name belongs to this project, not to another package or the compiled core."""
    member = module.members.get(name)
    if member is None:
        return False
    if isinstance(member, griffe.Alias):
        try:
            target = member.final_target
        except griffe.AliasResolutionError:
            return False  # a docstring of another package, or of constants that are assigned together
        return target.path.startswith(("dragon.", "torchloader.")) and "._core" not in target.path
    return not (isinstance(member, griffe.Attribute) and _names_another(member))


def _names_another(attribute: griffe.Attribute) -> bool:
    value = str(attribute.value or "")
    return "." in value and value.replace(".", "").isidentifier() and not attribute.docstring


def others(all_topics: Sequence[Topic]) -> dict[str, str]:
    """Return further names of objects in the reference, each with the name under which the object is described."""
    modules = [module for topic in all_topics for module in topic.modules]
    return {f"{module.name}.{name}": known for module in modules for name, known in module.again.items()}


def identifiers(all_topics: Sequence[Topic]) -> dict[str, str]:
    """Return full names by the names that documents use: the whole name, or its last part if it is unique."""
    full = [f"{module.name}.{name}" for topic in all_topics for module in topic.modules for name in module.names]
    last = Counter(name.rpartition(".")[2] for name in full)
    # The names of constants and functions are often also names of other things.
    classes = {
        short: name
        for name in full
        if last[short := name.rpartition(".")[2]] == 1 and short[0].isupper() and not short.isupper()
    }
    meant = {name.rpartition(".")[2]: name for name in _MEANT}
    return {name: name for name in full} | others(all_topics) | classes | meant


def write(all_topics: Sequence[Topic], root: Path, folder: Path) -> None:
    """Write the page of each topic, and one with all names."""
    folder.mkdir()
    for topic in all_topics:
        (folder / f"{topic.file}.md").write_text(_page(topic, root / "docs"))
    (folder / "index.md").write_text(_index(all_topics))


def _page(topic: Topic, docs: Path) -> str:
    titles = {guide: (docs / guide).read_text().split("\n", 1)[0].removeprefix("# ") for guide in topic.guides}
    guides = ", ".join(f"[{title}](../{guide})" for guide, title in titles.items())
    text = [f"# Reference: {topic.title}", topic.about, f"Guides: {guides}."]
    for module in topic.modules:
        text += [f"## {module.name}", module.about]
        text += [f"::: {module.name}.{name}\n    options:\n      heading_level: 3" for name in module.names]
        if module.again:
            rows = [f"| `{name}` | [`{known}`][{known}] |" for name, known in module.again.items()]
            text.append("\n".join(["| name | the same as |", "|---|---|", *rows]))
    return "\n\n".join(text) + "\n"


def _index(all_topics: Sequence[Topic]) -> str:
    text = ["# Reference of the API", "All public names, from their docstrings and annotations."]
    for topic in all_topics:
        text += [f"## [{topic.title}]({topic.file}.md)", topic.about]
        rows = ["| module | names |", "|---|---|"]
        for module in topic.modules:
            known = {name: f"{module.name}.{name}" for name in module.names} | dict(module.again)
            names = ", ".join(f"[`{name}`][{full}]" for name, full in sorted(known.items()))
            rows.append(f"| `{module.name}` | {names} |")
        text.append("\n".join(rows))
    text.append("Other projects link here by `objects.inv`; `llms.txt` and `llms-full.txt` are the site as plain text.")
    return "\n\n".join(text) + "\n"
