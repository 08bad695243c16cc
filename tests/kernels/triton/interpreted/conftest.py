"""These files run under Triton's interpreter, each in a process of its own.

Whether a kernel is interpreted is settled when Triton is first imported, and any other test
may have imported it (torch does so by itself), so this process cannot switch.
``tests/kernels/triton/test_interpreted.py`` runs the files with ``TRITON_INTERPRET=1``.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
