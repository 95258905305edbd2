"""Imported before what it is about: tests run the sources in their own process and its forks.

They put objects of their own in the place of compiled classes, which compiled code refuses.
Programs that they start run as a user's.
"""

from __future__ import annotations

from emulator.compiled.finder import run_sources

run_sources("a test's own process")
