"""Tasks described by a YAML file, with placeholders for the values that differ."""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dragon.infrastructure.facts import PMIBackend
from dragon.native.process import ProcessTemplate
from dragon.workflows.batch.call import Access, access
from dragon.workflows.batch.errors import BatchError
from dragon.workflows.batch.task import Options, Task

_TASK = {"type", "import_args", "run_args", "name", "timeout", "reads", "writes", "stdout", "stderr"}
_PROCESS = {"target", "args", "kwargs", "cwd", "env", "policy"}
_KEYS = {
    "function": _TASK | {"target", "args", "kwargs"},
    "process": _TASK | _PROCESS,
    "job": _TASK | {"processes", "pmi"},
}


class MakeTask:
    """Submits a task from a description at each call. Returned by Batch.import_func().

    Positional arguments are values of the file's `run_args`, in order; keyword arguments are passed by name. Raises
    BatchError for a file that does not describe a task, TypeError for more arguments than the file names, and for
    missing ones.

    Examples:
        >>> from pathlib import Path
        >>> from dragon.workflows.batch import Batch
        >>> file = Path("power.yml")
        >>> _ = file.write_text("{target: $function, import_args: [function], run_args: [x], args: [2, $x]}")
        >>> with Batch(workers_per_node=1) as batch:
        ...     power = batch.import_func(file, pow)
        ...     power(10).get()
        1024
    """

    def __init__(
        self,
        options: Callable[..., Options],
        path: str | os.PathLike[str],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._options = options
        self._path = os.fspath(path)
        self._values: dict[str, Any] = {}
        self._description = self._read()
        self._values |= self._named("import_args", args, kwargs)

    def _read(self) -> dict[str, Any]:
        try:
            read = yaml.safe_load(Path(self._path).read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise BatchError(f"{self._path} is no YAML: {error}") from error
        if not isinstance(read, dict):
            raise BatchError(f"{self._path} must be a mapping with the keys {', '.join(sorted(_KEYS['function']))}")
        found: dict[str, Any] = read
        if found.get("executables"):
            self._values, found = _of_dragonhpc(found)
        kind = found.setdefault("type", "function")
        if kind not in _KEYS:
            raise BatchError(f"{self._path}: the type is {kind!r}, and must be one of {', '.join(_KEYS)}")
        unknown = set(found) - _KEYS[kind]
        if unknown:
            raise BatchError(f"{self._path}: a {kind} has no {', '.join(sorted(map(str, unknown)))}")
        needed = "processes" if kind == "job" else "target"
        if needed not in found:
            raise BatchError(f"{self._path}: a {kind} needs {needed}")
        return found

    def _named(self, which: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = self._description.get(which) or []
        if len(args) > len(names):
            raise TypeError(f"{self._path} names {len(names)} {which}, and there are {len(args)}")
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def __call__(self, *args: object, **kwargs: object) -> Task:
        """Submit a task."""
        values = {**self._values, **self._named("run_args", args, kwargs)}
        one = {key: self._filled(part, values) for key, part in self._description.items()}
        options = self._options(
            reads=[_access(part, writes=False) for part in one.get("reads") or []],
            writes=[_access(part, writes=True) for part in one.get("writes") or []],
            name=one.get("name"),
            timeout=one.get("timeout"),
            stdout=one.get("stdout"),
            stderr=one.get("stderr"),
            pmi=one.get("pmi", PMIBackend.AUTO),
        )
        if one["type"] == "function":
            return options.function(one["target"], *(one.get("args") or []), **(one.get("kwargs") or {}))
        if one["type"] == "process":
            return options.process(self._template(one))
        return options.job([(part.get("nproc", 1), self._template(part)) for part in one["processes"]])

    def _filled(self, part: object, values: Mapping[str, Any]) -> Any:
        """Replace placeholders: `$name` by the value, within a longer text by its text; `{call: ..., args: [...]}` by
        what the call returns."""
        if isinstance(part, str):
            return self._value(part, values)
        if isinstance(part, list):
            return [self._filled(item, values) for item in part]
        if isinstance(part, dict):
            filled = {key: self._filled(item, values) for key, item in part.items()}
            if "call" in filled:
                return filled["call"](*filled.get("args", []), **filled.get("kwargs", {}))
            return filled
        return part

    def _value(self, text: str, values: Mapping[str, Any]) -> object:
        try:
            if text.startswith("$") and text[1:].isidentifier():
                return values[text[1:]]
            return string.Template(text).substitute(values)
        except (KeyError, ValueError) as error:
            raise TypeError(f"{self._path}: {text!r} needs a value that was not given: {error}") from None

    @staticmethod
    def _template(part: dict[str, Any]) -> ProcessTemplate:
        return ProcessTemplate(**{key: value for key, value in part.items() if key in _PROCESS and value is not None})


def _of_dragonhpc(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults of arguments, and the description, of one in dragonhpc's form: a name alone stands for its
    argument, and `{name: [...]}` for a call of it."""
    defaults = {**(found.get("import_kwargs") or {}), **(found.get("kwargs") or {})}
    names = {*(found.get("import_args") or []), *(found.get("args") or []), *defaults}

    def changed(part: object) -> Any:
        if isinstance(part, str):
            return f"${part}" if part in names else part.replace("$", "$$")
        if isinstance(part, list):
            return [changed(item) for item in part]
        if isinstance(part, dict):
            [(key, value), *others] = part.items()
            if key in names and not others:
                return {"call": f"${key}", "args": changed(value)}
            return {key: changed(value) for key, value in part.items()}
        return part

    made: dict[str, Any] = {
        key: changed(found[key]) for key in ("type", "name", "stdout", "stderr", "pmi") if key in found
    }
    made |= {"import_args": found.get("import_args"), "run_args": found.get("args")}
    for key in ("reads", "writes"):
        parts = changed(found.get(key) or [])
        files = [{"obj": file} for part in parts for file in part.get("files", ())]
        made[key] = files + [{"obj": part["ddict"], "channels": part["keys"]} for part in parts if "ddict" in part]
    if (limit := found.get("timeout")) is not None:
        units = {"day": 86_400, "hour": 3600, "min": 60, "sec": 1}
        made["timeout"] = (
            sum(units[unit] * count for unit, count in limit.items()) if isinstance(limit, dict) else limit
        )
    if made.get("type") == "job":
        return defaults, {**made, "processes": changed(found["executables"])}
    return defaults, {**made, **changed(found["executables"][-1])}


def _access(part: object, writes: bool) -> Access:
    if isinstance(part, dict):
        return access(part["obj"], tuple(part.get("channels") or []), writes)
    return access(part, (), writes)
