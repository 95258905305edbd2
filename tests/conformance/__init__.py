"""The conformance report: numbered statements, and the tests that prove them."""
