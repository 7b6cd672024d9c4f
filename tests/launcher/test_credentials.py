"""The certificates of a run."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from dragon.runtime.credentials import (
    Authority,
    client_context,
    fingerprint,
    greeting_context,
    node_name,
    peer_index,
    pinned_context,
    server_context,
)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection in memory, after a message in each direction. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server)]
    for _ in range(3):
        for end in reversed(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for speaker, listener in (ends, reversed(ends)):
        speaker.write(b"hello")
        assert listener.read() == b"hello"
    return ends[0], ends[1]


def of(authority: Authority, index: int) -> tuple[bytes, bytes, bytes]:
    return (authority.certificate, *authority.issue(node_name(index)))


def test_nodes_of_a_run_authenticate_each_other_by_index(authority: Authority) -> None:
    server, client = shake_hands(server_context(*of(authority, 3)), client_context(*of(authority, 12)))
    assert (peer_index(client), peer_index(server)) == (3, 12)
    assert server.version() == client.version() == "TLSv1.3"


def test_a_foreign_certificate_is_refused(authority: Authority) -> None:
    stranger = Authority()
    ours, theirs = of(authority, 0), of(stranger, 0)
    posing = (ours[0], *theirs[1:])  # knows our authority's certificate, as everybody may
    for server, client in ((ours, theirs), (theirs, ours), (ours, posing), (posing, ours)):
        with pytest.raises(ssl.SSLError):
            shake_hands(server_context(*server), client_context(*client))


def test_a_caller_without_a_certificate_is_refused(authority: Authority) -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(*of(authority, 0)), pinned_context())


def test_a_certificate_is_valid_independently_of_the_clocks_of_nodes(authority: Authority) -> None:
    from cryptography import x509

    for certificate in of(authority, 0)[:2]:
        shown = x509.load_pem_x509_certificate(certificate)
        assert (shown.not_valid_before_utc.year, shown.not_valid_after_utc.year) == (1970, 9999)


def test_a_node_cannot_sign_for_others(authority: Authority) -> None:
    forger = Authority()
    forger._key, forger._name = Authority()._key, "node-1"
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(*of(authority, 0)), client_context(authority.certificate, *forger.issue("node-2")))


def test_older_tls_is_refused(authority: Authority) -> None:
    old = client_context(*of(authority, 1))
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(server_context(*of(authority, 0)), old)


def test_a_connection_for_the_greeting_needs_no_client_certificate(authority: Authority) -> None:
    certificate, key = authority.issue("front end")
    _, client = shake_hands(greeting_context(certificate, key), pinned_context())
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    assert fingerprint(shown) == fingerprint(certificate)
    assert len(fingerprint(certificate)) == 64


@pytest.mark.parametrize("name", ["front end", "node-", "node--1", "node-x", "x"])
def test_a_certificate_that_is_not_of_a_node_is_refused(authority: Authority, name: str) -> None:
    caller = client_context(authority.certificate, *authority.issue(name))
    server, _ = shake_hands(server_context(*of(authority, 0)), caller)
    with pytest.raises(ValueError, match="no node of the run"):
        peer_index(server)


def test_keys_leave_no_files(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    server_context(*of(authority, 0))
    assert list(tmp_path.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) == before
