"""What ends the wait for a live capture."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from emulator.dataplane.capture.live_stream import LiveStream
from emulator.dataplane.capture.sniffer import Sniffer


@pytest.fixture
def stream() -> Iterator[LiveStream]:
    """A stream that nothing ends."""
    with open(os.devnull, "wb") as out:
        sniffer: Any = Sniffer(["sleep", "infinity"], ready="", stdout=out.fileno())
        yield LiveStream([sniffer], sniffer, out.fileno(), None)
        sniffer.kill()


def test_a_signal_ends_the_wait_though_its_handler_does_nothing(stream: LiveStream) -> None:
    """So that one which comes just before the wait does, too."""
    over = threading.Event()

    def signals() -> None:
        while not over.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    sender = threading.Thread(target=signals)
    sender.start()
    try:
        stream.wait()
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
