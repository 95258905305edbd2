"""The tests of the BMWG drafts on AI fabrics, one file for each section: a library of suites."""
