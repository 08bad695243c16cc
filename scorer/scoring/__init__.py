"""From a request to rows of the engine, and from their outcomes back to scores."""
