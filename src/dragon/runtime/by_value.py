"""Sends functions and classes of a main program by value if other processes cannot import them.

In the receiving process they share the globals of one module, as in a forked child: a global that an initializer sets
is seen by all functions that arrive later. Each function brings the globals that it uses, with a token for each value.
A value whose token was received before is not set again, because this process may have changed it; a value that its
sender has changed meanwhile is. Attributes of classes follow the same rule, and a function of the module is the same
object each time. In the main program itself nothing is set: the functions are its own.
"""

from __future__ import annotations

import ast
import copyreg
import functools
import io
import itertools
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dragon import cpython
from dragon.runtime import picklers

Token = tuple[str, Any]

_ATOMS = frozenset({type(None), bool, int, float, complex})
_HEADER = ("__package__", "__name__", "__path__", "__file__", "__builtins__")
_NOTHING = object()

_numbers = itertools.count(1)
# The token of each function and class, which names the process that first sent it, and the function of each token.
_tokens: weakref.WeakKeyDictionary[Any, Token] = weakref.WeakKeyDictionary()
_functions: weakref.WeakValueDictionary[Token, Any] = weakref.WeakValueDictionary()


@functools.cache
def _process_name(process: int) -> str:
    return f"{process}-{os.urandom(8).hex()}"


def _token_of_object(obj: object) -> Token:
    """Return a token that is the same for the same object in every process."""
    try:
        token = _tokens.get(obj)
        if token is None:
            token = _tokens[obj] = (_process_name(os.getpid()), next(_numbers))
        return token
    except TypeError:  # the object supports no weak references, or no hash
        return "object", (_process_name(os.getpid()), id(obj))


class _DigestPickler(pickle.Pickler):
    """A pickler for digests of an object's contents, in which functions and classes count by their identity."""

    dispatch_table = copyreg.dispatch_table

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, (type, types.FunctionType)):
            return id, _token_of_object(obj)  # only the digest of the pickle is used
        return _reduce(obj)


def _token_of_value(value: object) -> Token:
    """Return a token that stays the same while the value does not change."""
    kind = type(value)
    if kind in _ATOMS:
        return kind.__name__, repr(value)
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    if isinstance(value, (type, types.FunctionType)):
        return _token_of_object(value)
    import hashlib  # imported late: it takes milliseconds, and few programs need it

    file, digest = io.BytesIO(), hashlib.blake2b(digest_size=16)
    try:
        pickler = _DigestPickler(file, protocol=5, buffer_callback=lambda buffer: digest.update(buffer.raw()))
        outer, picklers.state.names = picklers.state.names, []  # its handles are announced when it is sent
        try:
            pickler.dump(value)
        finally:
            picklers.state.names = outer
    except Exception:
        return _token_of_object(value)  # the contents cannot be pickled: use the identity
    digest.update(file.getbuffer())
    return "digest", digest.digest()


class Namespace:
    """The globals that functions of one main program share in this process."""

    def __init__(self, contents: dict[str, Any], before: Mapping[str, Any], is_own: bool = False) -> None:
        self.contents = contents
        self._is_own = is_own
        self._set = dict(before)  # values set by an import or for a sender, and not by the program
        self._tokens: dict[str, Token] = {}

    def merge(self, names: Mapping[str, Any], tokens: Mapping[str, Token]) -> None:
        """Set the globals that a sender's functions use, unless they were received before or set by the program."""
        for name, value in names.items():
            if self._is_own:
                self.contents.setdefault(name, value)
                continue
            known, self._tokens[name] = self._tokens.get(name), tokens[name]
            if known == tokens[name]:
                continue
            if known is None and self.contents.get(name, _NOTHING) is not self._set.get(name, _NOTHING):
                continue  # the program has set it here
            self.contents[name] = self._set[name] = value


_namespaces: dict[str, Namespace] = {}
_programs: dict[int, str] = {}  # names of main programs by the id() of their globals in this process
_imported: dict[str, Any] = {}  # the globals of the main module's functions right after its import


def imported_main(module: types.ModuleType) -> None:
    """Note that the main program was imported by this process, or by the one from which it is forked."""
    _imported.clear()
    _imported.update(_globals_of_functions(module))


def _globals_of_functions(module: types.ModuleType) -> dict[str, Any]:
    """Return the globals of a main module's functions; multiprocessing gives the module itself a copy of them."""
    for value in list(vars(module).values()):
        for function in (value, *vars(value).values()) if isinstance(value, type) else (value,):
            if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
                return function.__globals__
    return vars(module)


_RUN_BY = "\0"
_shared_with: list[str] = []  # at most one process: its functions share the globals of the imported main module


def send_from(importable: Callable[[], bool], reduce: Callable[[Any], Any]) -> None:
    """Set what this process needs to send functions: whether others can import its main program, and the reducers of
    multiprocessing and torch."""
    global _importable, _reduce
    _importable, _reduce = importable, reduce


_importable: Callable[[], bool]
_reduce: Callable[[Any], Any]


def _program() -> str:
    """Return the name of the main program: its file, if other processes import it, and the process that runs it."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    process = _process_name(os.getpid())
    if not path or not _importable():
        return process
    return f"{os.path.abspath(path)}{_RUN_BY}{process if main.__name__ == '__main__' else ''}"


def _program_of(contents: dict[str, Any]) -> str | None:
    """Return the main program to which these globals belong; None if they are a module's."""
    main = sys.modules["__main__"]
    own = vars(main) if main.__name__ == "__main__" else _globals_of_functions(main)
    return _program() if contents is own else _programs.get(id(contents))


def _is_own(program: str) -> bool:
    """Return whether this process runs that main program; one that a child process imported counts too."""
    if sys.modules["__main__"].__name__ != "__main__" or cpython.is_being_made():  # of the zygote's process
        return False
    mine = _program()
    return program in (mine, mine.partition(_RUN_BY)[0] + _RUN_BY)


def _is_imported(program: str) -> bool:
    """Return whether this process imported that main program; other processes may run the same file."""
    path, separator, process = program.partition(_RUN_BY)
    imported = sys.modules.get("__mp_main__")  # in a main program itself this is its module
    file = getattr(imported, "__file__", None)
    if (
        not separator
        or imported is None
        or imported.__name__ == "__main__"
        or not file
        or os.path.abspath(file) != path
    ):
        return False
    if process and not _shared_with:
        _shared_with.append(process)
    return not process or process in _shared_with


def _namespace(program: str, header: Mapping[str, Any]) -> Namespace:
    if _is_own(program):
        return Namespace(vars(sys.modules["__main__"]), {}, is_own=True)
    if _is_imported(program):
        program = program.partition(_RUN_BY)[0] + _RUN_BY
    known = _namespaces.get(program)
    if known is None:
        if _is_imported(program):
            contents = _globals_of_functions(sys.modules["__mp_main__"])
            known = Namespace(contents, _imported or contents)
        else:
            known = Namespace(dict(header), {})
        _namespaces[program] = known
        _programs[id(known.contents)] = program
    return known


class _SharedGlobals:
    """A placeholder for the globals of a main program in a pickle."""

    def __init__(self, program: str, contents: Mapping[str, Any]) -> None:
        self._arguments = program, {name: contents[name] for name in _HEADER[:-1] if name in contents}

    def __reduce__(self) -> tuple[object, ...]:
        return _globals_of, self._arguments


def _globals_of(program: str, header: Mapping[str, Any]) -> dict[str, Any]:
    return _namespace(program, header).contents


def shared_reduction(obj: Any, reduction: object) -> object:
    """Return cloudpickle's reduction of a function or class, changed so that the reader shares globals and objects."""
    if not isinstance(reduction, tuple) or len(reduction) != 6:
        return reduction  # sent by reference
    make, arguments, (state, slots), _, _, set_state = reduction
    if isinstance(obj, type):
        _classes.setdefault(obj, None)
        tokens = {name: _token_of_value(value) for name, value in state.items()}
        return make, arguments, ((state, slots), tokens, set_state), None, None, _set_class
    program = _program_of(obj.__globals__)
    if program is None:
        return reduction
    code, _, *rest = arguments
    names = slots["__globals__"]
    slots["__globals__"] = {}
    tokens = {name: _token_of_value(value) for name, value in names.items()}
    token = None
    if obj.__globals__.get(obj.__name__) is obj:
        token = _token_of_object(obj)
        _functions[token] = obj
        _complete.add(obj)
    shared = _SharedGlobals(program, obj.__globals__)
    arguments = token, make, (code, shared, *rest)
    return _function, arguments, ((state, slots), program, names, tokens, set_state), None, None, _set_function


def _function(token: Token | None, make: Callable[..., Any], arguments: tuple[Any, ...]) -> object:
    if token is None:
        return make(*arguments)
    known = _functions.get(token)
    if known is None:
        known = make(*arguments)
        _tokens[known], _functions[token] = token, known
    return known


def _set_function(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    whole, program, names, tokens, set_state = state
    if function not in _complete:
        _complete.add(function)
        set_state(function, whole)
        if function in _tokens:
            _namespace(program, {}).contents.setdefault(function.__name__, function)
    _namespace(program, {}).merge(names, tokens)


_complete: weakref.WeakSet[Any] = weakref.WeakSet()  # functions whose state is set
# Classes that were sent by value: the tokens of the attributes received last; None for classes of this process.
_classes: weakref.WeakKeyDictionary[type, dict[str, Token] | None] = weakref.WeakKeyDictionary()


def _set_class(cls: type, state: tuple[Any, ...]) -> None:
    (attributes, slots), tokens, set_state = state
    known = _classes.get(cls, _NOTHING)
    if known is None:
        return
    if isinstance(known, dict):
        attributes = {name: value for name, value in attributes.items() if known.get(name) != tokens[name]}
    _classes[cls] = tokens
    if attributes:
        set_state(cls, (attributes, slots))


_NAME = "__name__"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class MainSource:
    """The source of a main program.

    Attributes:
        is_guarded: whether the module decides by its `__name__` what it does, as in `if __name__ == "__main__":`, so
            that another process may import it. One that only passes its name on, for example to logging.getLogger(), or
            compares it in a function, does not.
        bound_here: the names that have their current values only in the program itself: those bound under such an `if`,
            and by `global` in functions.
    """

    def __init__(self, source: bytes) -> None:
        self.is_guarded = False
        self.bound_here: frozenset[str] = frozenset()
        if _NAME.encode() not in source:
            return
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # the file was changed since the start, or is not Python source
            return
        guards = [statement for statement in tree.body if isinstance(statement, ast.If) and _mentions(statement.test)]
        self.is_guarded = _decides(tree)
        if self.is_guarded:
            self.bound_here = frozenset(_bound(guards)).union(_globals(tree))


def _mentions(expression: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id == _NAME for node in ast.walk(expression))


def _decides(node: ast.AST) -> bool:
    """Return whether a part of the module, outside of its functions and classes, decides something by its name."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)) and _mentions(node.test):
        return True
    if (isinstance(node, ast.Match) and _mentions(node.subject)) or (isinstance(node, ast.BoolOp) and _mentions(node)):
        return True
    return not isinstance(node, _SCOPES) and any(map(_decides, ast.iter_child_nodes(node)))


def _bound(statements: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements bind in their own scope."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        if not isinstance(node, _SCOPES):
            yield from _bound(ast.iter_child_nodes(node))


def _globals(tree: ast.Module) -> Iterator[str]:
    """Yield the names that functions bind in the module."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            theirs = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
            yield from theirs.intersection(_bound(function.body)) if theirs else ()
