"""For tests/ and doctor/tests/ alike."""

pytest_plugins = ["every_session"]  # in tests/support
