"""The website as plain text, for language models and other readers of text: llms.txt and llms-full.txt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import griffe

from website import reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from website.pages import Page
    from website.reference import Topic

_ROOT = Path(__file__).parents[1]


def overview(pages: Sequence[Page], topics: Sequence[Topic]) -> str:
    """Return the title, address and first sentence of every page (https://llmstxt.org)."""
    lines = ["# Dragon", "", "> A runtime for processes, memory and data: multiprocessing on one node or many.", ""]
    lines += [
        "## Guides",
        "",
        *(f"- [{page.title}]({_address(page.at)}): {_first_sentence(page.text)}" for page in pages),
        "",
    ]
    lines += ["## Reference", "", *(f"- [{t.title}](reference/{t.file}/): {t.about}" for t in topics), ""]
    return "\n".join(lines)


def whole(pages: Sequence[Page], topics: Sequence[Topic]) -> str:
    """Return all pages as they are written, followed by the signature and docstring of every public name."""
    return "\n\n".join([*(page.text.strip() for page in pages), "# Reference", *_entries(topics)]) + "\n"


def _address(at: str) -> str:
    return re.sub(r"((^|/)(README|index))?\.md$", "/", at).lstrip("/") or "./"


def _first_sentence(text: str) -> str:
    for paragraph in text.split("\n\n")[1:]:
        if paragraph[:1].isalpha():
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":")
    return ""


def _entries(topics: Sequence[Topic]) -> Iterator[str]:
    for topic in topics:
        yield f"## {topic.title}\n\n{topic.about}"
        for module in topic.modules:
            for name in module.names:
                yield from _entry(f"{module.name}.{name}", reference.found(f"{module.name}.{name}", _ROOT))


def _entry(path: str, thing: griffe.Object | griffe.Alias) -> Iterator[str]:
    thing = thing.final_target if isinstance(thing, griffe.Alias) else thing
    docstring = thing.docstring.value if thing.docstring else ""
    if isinstance(thing, griffe.Class):
        yield f"### {path}({_parameters(thing.parameters)})\n\n{docstring}".rstrip()
        for name, member in sorted(thing.all_members.items()):
            if not name.startswith("_"):
                yield from _entry(f"{path}.{name}", member)
    elif isinstance(thing, griffe.Function):
        returns = f" -> {thing.returns}" if thing.returns else ""
        yield f"### {path}({_parameters(thing.parameters)}){returns}\n\n{docstring}".rstrip()
    else:
        yield f"### {path}\n\n{docstring}".rstrip()


def _parameters(parameters: griffe.Parameters) -> str:
    written = []
    marks = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        text = marks.get(parameter.kind, "") + parameter.name if parameter.kind else parameter.name
        text += f": {parameter.annotation}" if parameter.annotation else ""
        has_default = parameter.default is not None and text[0] != "*"
        written.append(f"{text} = {parameter.default}" if has_default else text)
    return ", ".join(written)
