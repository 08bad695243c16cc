"""The running service against its own OpenAPI document: ``python -m tests.conformance``."""
