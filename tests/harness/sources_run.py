"""Imported before what it is about: tests run the sources in their own process and its forks.

They put objects of their own in the place of compiled classes, which compiled code refuses.
Programs that they start run as a user's.  Tests that do without such objects run compiled modules
with UETEMU_TESTS_COMPILED=1.
"""

import os

from emulator.compiled.finder import run_sources

if os.environ.get("UETEMU_TESTS_COMPILED") != "1":
    run_sources("a test's own process")
