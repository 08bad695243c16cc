"""Real models that only tests use."""
