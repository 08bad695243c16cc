"""Text and HTTP around the engine: templates, tokenisation, routes, metrics, command line."""
