"""Calls of a worker in another process, and what comes back of exceptions."""

import pickle
import threading

import pytest

from emulator.workers.forked_worker import _pickled


class Unmakeable(Exception):
    """Pickled well, and made again never: its ``__init__`` wants two arguments."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize(
    ("failure", "value", "stated"),
    [
        (Unmakeable(1, 2), None, "Unmakeable cannot leave the process"),
        (None, threading.Lock(), "lock cannot leave the process"),
    ],
)
def test_what_cannot_be_pickled_goes_as_its_text(
    failure: Exception | None, value: object, stated: str
) -> None:
    error, there, nothing = pickle.loads(_pickled(failure, "where", value))
    assert isinstance(error, RuntimeError)
    assert stated in str(error)
    assert (there, nothing) == ("where", None)


def test_an_answer_comes_back() -> None:
    assert pickle.loads(_pickled(None, "", {"x": 1})) == (None, "", {"x": 1})
