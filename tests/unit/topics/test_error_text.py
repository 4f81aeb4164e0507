"""An exception always has a text in a message, even if its own text is empty."""

from __future__ import annotations

import pytest
from aiokafka.errors import KafkaTimeoutError

from topics.error_text import error_text


@pytest.mark.parametrize(
    ("error", "otherwise", "text"),
    [
        (TimeoutError(), "no answer in time", "no answer in time"),
        (TimeoutError(), "", "TimeoutError"),
        (ConnectionError("broker away"), "no answer in time", "broker away"),
        (OSError(" \n"), "", "OSError"),
        (KafkaTimeoutError(), "", "KafkaTimeoutError"),
    ],
)
def test_an_exception_has_a_text(error: Exception, otherwise: str, text: str) -> None:
    assert error_text(error, otherwise) == text
