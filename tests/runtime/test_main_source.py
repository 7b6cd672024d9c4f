"""The properties that are derived from the source of a main program, with a table of examples."""

from __future__ import annotations

import pytest

from dragon.runtime.by_value import MainSource

GUARDED = [
    'if __name__ == "__main__": pass',
    'if "__main__" == __name__: pass',
    'if __name__ != "__main__": raise SystemExit',
    'if __name__ in ("__main__", "run"): pass',
    'if not __name__ == "__main__": pass',
    'if __name__ == "__main__" and True: pass',
    'if (name := __name__) == "__main__": pass',
    'if __name__.endswith("__main__"): pass',
    '__name__ == "__main__" and main()',
    'main() if __name__ == "__main__" else None',
    'match __name__:\n    case "__main__": pass',
    'while __name__ == "__main__": break',
    'try:\n    if __name__ == "__main__": pass\nfinally: pass',
    "# coding: latin-1\nx = '\xe9'\nif __name__ == '__main__': pass",
]
NOT_GUARDED = [
    "",
    "import logging\nlog = logging.getLogger(__name__)",
    '"""Run this only where __name__ == "__main__"."""',
    '# if __name__ == "__main__":',
    "text = 'if __name__ == \"__main__\":'",
    'self.__name__ == "__main__"',
    "print(__name__)",
    'print(__name__ == "__main__")',
    'def is_main(): return __name__ == "__main__"',
    'def f():\n    if __name__ == "__main__": pass',
    'class C:\n    def f(self): return 1 if __name__ == "__main__" else 2',
    'if __name__ == "__main__"',  # no Python: it was changed meanwhile
]


@pytest.mark.parametrize("source", GUARDED)
def test_a_program_that_tests_its_name_is_guarded(source: str) -> None:
    assert MainSource(source.encode("latin-1")).is_guarded


@pytest.mark.parametrize("source", NOT_GUARDED)
def test_a_program_that_only_mentions_its_name_is_not_guarded(source: str) -> None:
    assert not MainSource(source.encode()).is_guarded


def bound_here(source: str) -> set[str]:
    return set(MainSource((source + '\nif __name__ == "__main__": pass').encode()).bound_here)


THERE = [
    "def f(): pass",
    "class C:\n    x = 1\n    def f(self): f = 2",
    "try:\n    import numpy as f\nexcept ImportError:\n    f = None",
    "f = lambda y: (f := y)",
    '"""quoted\nif __name__ == 1:\n    f = 1"""\ndef f(): pass',
    "globals()['f'] = 1",
    "def main():\n    f = 1",
    "def main():\n    global f\n    print(f)",
]


@pytest.mark.parametrize("source", THERE)
def test_names_of_the_module_are_bound_by_an_import(source: str) -> None:
    assert "f" not in bound_here(source)


NOT_THERE = [
    "def f(): pass\nif __name__ == '__main__':\n    def f(): pass",
    "f = 1\nif __name__ == '__main__':\n    f, g = 1, 2",
    "if __name__ == '__main__':\n    for f in (): pass",
    "if __name__ == '__main__':\n    if True:\n        class f: pass",
    "f = None\ndef main():\n    global f\n    f = 1",
    "f = None\ndef main():\n    global f\n    def f(): pass",
    "class f: pass\nif __name__ != '__main__': pass\nelse:\n    class f: pass",
    "if __name__ == '__main__':\n    async def f(): pass",
    "if __name__ == '__main__':\n    A, (f, *B) = 1, (2, 3)",
    "if __name__ == '__main__':\n    f: int = 1",
    "if __name__ == '__main__':\n    with open() as f: pass",
    "if __name__ == '__main__':\n    print(f := 1)",
    "if __name__ == '__main__':\n    import a as f",
    "if __name__ == '__main__':\n    match 1:\n        case f: pass",
]


@pytest.mark.parametrize("source", NOT_THERE)
def test_names_that_only_the_main_program_binds_are_missing(source: str) -> None:
    assert "f" in bound_here(source)
