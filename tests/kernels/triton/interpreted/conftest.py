"""These files run under Triton's interpreter, in processes of their own.

Whether a kernel is interpreted is settled when Triton is first imported, and any other test
may have imported it (torch does so by itself), so this process cannot switch.
``tests/kernels/triton/test_interpreted.py`` runs the files with ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def language_patched_once_a_launch() -> Iterator[None]:
    """Let a launch put the interpreted language in place once for each module, not at each call of a function.

    The interpreter does so anew whenever a kernel calls another jit function, and takes nothing back before the
    launch ends: only the first time has an effect. A third of the time of a launch went into the others.
    """
    from triton.runtime import interpreter

    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[str] = set()

    def patch_once(function: Callable[..., Any]) -> Any:
        if function.__module__ in patched:
            return interpreter._LangPatchScope()
        patched.add(function.__module__)
        return patch(function)

    def launch_afresh(executor: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(executor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(interpreter, "_patch_lang", patch_once)
        patches.setattr(interpreter.GridExecutor, "__call__", launch_afresh)
        yield
