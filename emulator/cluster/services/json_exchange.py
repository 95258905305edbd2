"""JSON in the requests and answers of the services that speak HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler


def json_body(handler: BaseHTTPRequestHandler, longest: int) -> Mapping[str, object] | None:
    """Return the object in the body of the request that ``handler`` has.

    None: there is none, or the body is longer than ``longest`` octets; of the latter the connection
    is closed after the answer.
    """
    try:
        length = int(handler.headers.get("Content-Length", "0"))
        if not 0 <= length <= longest:
            handler.close_connection = True
            return None
        content = json.loads(handler.rfile.read(length))
    except (ValueError, OSError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def answer_json(
    handler: BaseHTTPRequestHandler,
    octets: bytes,
    status: HTTPStatus = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Answer the request with ``octets`` of JSON, and ``headers`` beside the usual ones."""
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(octets)))
    handler.end_headers()
    handler.wfile.write(octets)
