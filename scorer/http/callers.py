"""Who is calling: known by a key, named by a gateway, or nobody in particular.

A tenant is a name of the operator's or of the gateway's, never a field of a body: whoever could
choose it could look into what others have in the cache.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scorer.errors import Unauthenticated

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@|+-]{0,127}")
_LEAST_KEY: Final = 16


class KeyFileError(ValueError):
    """A file of keys that cannot be used; the message names the line and repeats no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """How tenants are told apart. By default they are not.

    Args:
        keys: Tenant by the SHA-256 of a key of theirs; None: no key is needed. Digests are looked up,
            so that the time this takes tells nothing about the keys.
        header: Header in which a gateway names the tenant; None: nobody does.
    """

    keys: Mapping[bytes, str] | None = None
    header: str | None = None

    def tenant_of(self, headers: Mapping[str, str]) -> str | None:
        """The caller's name; None where tenants are not told apart.

        Raises:
            Unauthenticated: the caller has no key that is known, or the gateway gave no name.
        """
        if self.keys is not None:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            tenant = self.keys.get(_digest(key.strip())) if scheme.lower() == "bearer" else None
            if tenant is None:
                raise Unauthenticated("a key of this service is needed, as `authorization: Bearer KEY`")
            return tenant
        if self.header is not None:
            name = headers.get(self.header, "")
            if not _NAME.fullmatch(name):
                raise Unauthenticated(
                    f"the header {self.header} must name the tenant, in 1 to 128 letters, digits and ._:@|+-",
                    field=self.header,
                    value=len(name),
                    limit=128,
                )
            return name
        return None


def read_key_file(path: Path) -> Mapping[bytes, str]:
    """Tenants by digest of their keys, from lines of ``TENANT KEY``; ``#`` starts a comment line.

    A tenant may have several keys, so that one can be replaced while both are in use.

    Raises:
        KeyFileError: the file cannot be read, has no key, or a line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"the keys in {path} cannot be read: {error}") from error
    keys: dict[bytes, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        tenant, _, key = line.strip().partition(" ")
        key = key.strip()
        if not _NAME.fullmatch(tenant) or not key or not key.isascii() or " " in key:
            raise KeyFileError(f"{path}, line {number}: wanted TENANT KEY, two words with a space between them")
        if len(key) < _LEAST_KEY:
            raise KeyFileError(
                f"{path}, line {number}: the key has {len(key)} characters, at least {_LEAST_KEY} are wanted"
            )
        if keys.setdefault(_digest(key), tenant) != tenant:
            raise KeyFileError(f"{path}, line {number}: this key is that of another tenant, too")
    if not keys:
        raise KeyFileError(f"{path} has no key")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
