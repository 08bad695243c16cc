"""Real, unmodified clients of other rerank services against a running server: ``python -m tests.clients``."""
