"""A folder with a predictable name is opened only if it belongs to this user, is private, and is not a link."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dragon.infrastructure.private import connect_within, make_private, read_private

takes_root = pytest.mark.skipif(os.getuid() != 0, reason="takes root, to be another user")


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("mine")
    (folder / "file").chmod(0o600)
    return folder


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755, 0o710, 0o701])
def test_a_folder_with_permissions_for_other_users_is_refused(tmp_path: Path, mode: int) -> None:
    folder = private(tmp_path / "folder")
    folder.chmod(mode)
    (folder / "file").chmod(mode)
    with pytest.raises(PermissionError, match=f"mode {mode:o}; it has to be yours and closed to others"):
        read_private(folder / "file")
    assert not make_private(folder)


@takes_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = private(tmp_path / "folder")
    for path in (folder, folder / "file"):
        os.chown(path, 54321, 54321)
    with pytest.raises(PermissionError, match="belongs to user 54321"):
        read_private(folder / "file")
    assert not make_private(folder)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = private(tmp_path / "folder")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "link to a file").symlink_to(folder / "file")
    with pytest.raises(OSError):
        read_private(tmp_path / "link to a file")
    assert not make_private(tmp_path / "link")


def test_a_socket_in_a_private_folder_is_connected_to(tmp_path: Path) -> None:
    folder = private(tmp_path / "folder")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        listener.bind(str(folder / "agent"))
        listener.listen()
        connect_within(folder, "agent", caller)
        caller.sendall(b"hello")
        heard, _ = listener.accept()
        with heard:
            assert heard.recv(5) == b"hello"


@takes_root
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_in_a_folder_of_another_user_is_refused(tmp_path: Path, kind: socket.SocketKind) -> None:
    folder = private(tmp_path / "folder")
    with socket.socket(socket.AF_UNIX, kind) as listener, socket.socket(socket.AF_UNIX, kind) as caller:
        listener.bind(str(folder / "agent"))
        if kind == socket.SOCK_STREAM:
            listener.listen()
        os.chown(folder, 54321, 54321)
        with pytest.raises(PermissionError, match="is not a private folder of yours"):
            connect_within(folder, "agent", caller)
