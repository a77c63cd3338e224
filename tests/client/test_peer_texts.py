# SPDX-License-Identifier: Apache-2.0
"""Messages of peers: bounded, nothing a terminal obeys, and one line of the log each."""

from __future__ import annotations

import logging

import pytest

from fluss.client.retry import log_retry
from fluss.errors import ErrorCode, StorageError, error_for_code
from fluss.net.deadline import Deadline


def test_a_message_of_many_megabytes_is_cut() -> None:
    error = error_for_code(ErrorCode.STORAGE_EXCEPTION, "x" * 50_000_000)
    assert len(str(error)) < 11_000
    assert "(49990000 more characters)" in error.message


def test_control_characters_are_written_out() -> None:
    error = error_for_code(9999, "first\n\tsecond \x1b[2J\r\x00\x9b\u202e caf\u00e9")
    assert error.message == "first\n\tsecond \\x1b[2J\\r\\x00\\x9b\\u202e caf\u00e9"


def test_a_peer_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    error = error_for_code(ErrorCode.STORAGE_EXCEPTION, "full\nERROR root: all is lost")
    assert isinstance(error, StorageError)
    with caplog.at_level(logging.WARNING):
        log_retry("LIST_OFFSETS", error, Deadline(5_000))
    (message,) = (text for text in caplog.messages if "LIST_OFFSETS" in text)
    assert "full\\nERROR root" in message
    assert "\n" not in message
