"""A page in Debian's Chromium that stays open: asked by the DevTools protocol, over two pipes.

Chromium reads messages from descriptor 3 and writes to descriptor 4, each ended by a zero octet.
"""

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.runs.browser import CHROMIUM, LIMIT_S


class LivePage:
    """The page at ``url``, which alone can be reached; ``width`` is that of the screen."""

    def __init__(self, url: str, profile: Path, *, width: int = 1400, dark: bool = False) -> None:
        assert CHROMIUM is not None
        command = [
            CHROMIUM, "--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
            f"--user-data-dir={profile}", "--remote-debugging-pipe",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
        ]  # fmt: skip
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The shell puts the pipes on the two descriptors, whatever their numbers are here.
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                   deviceScaleFactor=1, mobile=False)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        self._process.wait(timeout=LIMIT_S)

    def value(self, script: str) -> Any:
        """Return what an expression of JavaScript is in the page, as JSON has it."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := self.value(script)):
            assert time.monotonic() < deadline, (script, self.value("document.body.innerText"))
            time.sleep(0.05)
        return found

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            found = os.read(self._from, 1 << 16)
            assert found, "the browser ended"
            self._rest += found
        text, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer
