"""Which version is running."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Version of the installed package; ``0+checkout`` where it runs from a checkout that is not installed."""
    try:
        return version("radix-scorer")
    except PackageNotFoundError:
        return "0+checkout"
