"""Base64 text and the bytes that it encodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragon.utils import B64


@given(st.binary())
def test_bytes_are_restored_from_their_base64_text(data: bytes) -> None:
    text = str(B64(data))
    assert text.isascii()
    assert B64.from_str(text).decode() == data
    assert B64.str_to_bytes(B64.bytes_to_str(data)) == data


@pytest.mark.parametrize("text", ["!!", "aGVsbG8", "aGVs bG8="])
def test_invalid_base64_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not base64"):
        B64.from_str(text)


def test_text_in_place_of_bytes_is_an_error() -> None:
    with pytest.raises(TypeError, match="expected bytes, not str"):
        B64("text")  # type: ignore[arg-type]
