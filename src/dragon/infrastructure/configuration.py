"""The settings that `dragon-config` keeps for this user's later runs: names and texts in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dragon.files import whole_file


def default_path() -> Path:
    """Return the path of the file."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "dragon" / "config.json"


def read(path: Path | None = None) -> dict[str, str]:
    """Return all settings. Raises ValueError if the file was not written by write()."""
    file = path or default_path()
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}; {_how_to_remove(path)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: it holds no object; {_how_to_remove(path)}")
    return {str(key): str(value) for key, value in content.items()}


def _how_to_remove(path: Path | None) -> str:
    return f"`dragon-config {'' if path is None else f'--config-file {path} '}--clean` removes it"


def write(content: dict[str, str], path: Path | None = None) -> None:
    """Write the settings, atomically."""
    file = path or default_path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as written:
        written.write_text(json.dumps(content, indent=2) + "\n")
