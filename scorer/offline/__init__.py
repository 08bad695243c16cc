"""Scoring without a web server."""
