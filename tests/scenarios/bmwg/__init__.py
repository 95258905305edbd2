"""Tests of the suites of the BMWG drafts."""
