"""A stand-in for a model server: ``python -m`` this module with ``ADDRESS PORT ...``.

It speaks the parts of OpenAI's HTTP API that load generators use: ``/v1/models``,
``/v1/completions`` and ``/v1/chat/completions``, streamed (server-sent events) or whole.  There is
no model: tokens are words of a list, the first after the time to first token (TTFT), each other one
after the inter-token latency (ITL).  Both are options, in seconds of the machine's time.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from emulator.cluster.services.json_exchange import answer_json, json_body

MODEL = "stand-in"
WORDS = ("all", "packets", "of", "this", "answer", "are", "real", "and", "its", "words", "not")
MOST_TOKENS, DEFAULT_TOKENS = 100_000, 16
LONGEST_BODY = 1 << 20  # octets
PATIENCE_S = 60.0
QUEUED = 1024  # connections that wait to be accepted
DONE = "[DONE]"


class LlmHandler(BaseHTTPRequestHandler):
    server: LlmServer
    timeout = PATIENCE_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/v1/models":
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
            return
        self._answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        chat = self.path.rstrip("/") == "/v1/chat/completions"
        if not chat and self.path.rstrip("/") != "/v1/completions":
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
            return
        request = json_body(self, LONGEST_BODY)
        tokens = None if request is None else request.get("max_tokens", DEFAULT_TOKENS)
        if request is None or not isinstance(tokens, int) or not 0 < tokens <= MOST_TOKENS:
            self._refuse(
                HTTPStatus.BAD_REQUEST,
                f"the body is no JSON object, or max_tokens is not in 1..{MOST_TOKENS}",
            )
            return
        if request.get("stream"):
            self._stream(chat, tokens)
            return
        text = " ".join(self.server.tokens(tokens))
        self._answer(_completion(chat, text, streamed=False, usage=tokens))

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing for each of many requests."""

    def _stream(self, chat: bool, tokens: int) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, word in enumerate(self.server.tokens(tokens)):
            text = word if number == 0 else f" {word}"
            self._event(json.dumps(_completion(chat, text, streamed=True)))
        self._event(DONE)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        octets = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(octets), octets))
        self.wfile.flush()

    def _refuse(self, status: HTTPStatus, stated: str) -> None:
        self._answer({"error": {"message": stated, "type": "invalid_request_error"}}, status)

    def _answer(self, content: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK) -> None:
        answer_json(self, json.dumps(content).encode(), status)


class LlmServer(ThreadingHTTPServer):
    """The server at an address; ``ttft_s`` and ``itl_s`` are of the machine's time."""

    request_queue_size = QUEUED

    def __init__(self, address: str, port: int, *, ttft_s: float, itl_s: float) -> None:
        self._ttft_s, self._itl_s = ttft_s, itl_s
        self._never = threading.Event()
        super().__init__((address, port), LlmHandler)

    def server_bind(self) -> None:
        """Bind the socket, which sends each token at once."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """Let go of a client that went away in the middle of its answer."""

    def tokens(self, count: int) -> Iterator[str]:
        """Yield ``count`` words, each when it is due."""
        for number in range(count):
            self._never.wait(self._itl_s if number else self._ttft_s)
            yield WORDS[number % len(WORDS)]


def _completion(
    chat: bool, text: str, *, streamed: bool, usage: int | None = None
) -> dict[str, object]:
    """Return the object that a completion, or a part of it, is."""
    kind = "chat.completion" if chat else "text_completion"
    choice: dict[str, object] = {"index": 0, "finish_reason": None if streamed else "length"}
    if chat:
        choice["delta" if streamed else "message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    content: dict[str, object] = {
        "id": "cmpl-0",
        "object": f"{kind}.chunk" if chat and streamed else kind,
        "model": MODEL,
        "choices": [choice],
    }
    if usage is not None:
        content["usage"] = {"completion_tokens": usage}
    return content


def main(arguments: list[str]) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--ttft", type=float, required=True)
    parser.add_argument("--itl", type=float, required=True)
    given = parser.parse_args(arguments)
    server = LlmServer(given.address, given.port, ttft_s=given.ttft, itl_s=given.itl)
    sys.stdout.write(f"http://{given.address}:{given.port}/v1/models\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
