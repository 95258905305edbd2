"""Strict templates for pages of HTML, and hashes of their own scripts."""

from __future__ import annotations

import base64
import hashlib

import jinja2


def page_environment(package: str) -> jinja2.Environment:
    """Return the environment of the templates of ``package``: all values are escaped."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def source_of(environment: jinja2.Environment, name: str) -> str:
    """Return the text of the file ``name`` beside the templates, as it is."""
    assert environment.loader is not None
    text, _, _ = environment.loader.get_source(environment, name)
    return text


def policy_hash(text: str) -> str:
    """Return the expression by which a content-security policy lets ``text`` run (CSP 2)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
