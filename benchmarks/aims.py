"""What a run of full workloads should show on two processors with the default model in bfloat16.

Every number is a promise of the project, not a measurement; a report says for each whether the run kept it.
"""

from __future__ import annotations

from typing import Final

LEAST_RATIO: Final = {
    ("W1", "cold", "ours"): 1.1,
    ("W2", "cold", "ours"): 1.2,
    ("W2", "warm", "ours"): 1.5,
    ("W3", "cold", "ours"): 1.6,
    ("W3", "warm", "ours"): 2.5,
    ("W5", "cold", "ours"): 1.0,
    ("W1", "cold", "ours-int8"): 1.5,
    ("W4", "warm", "ours-http"): 2.5,
}
"""By workload, phase and system of ours: how many times as fast as the best other system."""

LEAST_LINEAR_SHARE: Final = 0.85
"""Of the calibration rate, in products of at least 512 rows."""

LEAST_ATTENTION_GFLOPS: Final = 380.0
"""Where nearly all keys belong to a shared prefix: W3 warm."""

MOST_ELSE: Final = {("W1", "cold"): 0.20, ("W2", "warm"): 0.30}
"""Share of the time that goes to neither linear layers nor attention, HTTP and tokenisation included."""

MOST_OVER_FORWARD: Final = 2.0
"""p50 of a question over HTTP, in forward passes of its tokens alone."""

MOST_P99_OVER_P50: Final = 2.0

MOST_POINTS_SHORT: Final = 5.0
"""Of the best possible hit rate, in percentage points."""

LEAST_SWEEP_SHARE: Final = 0.9
"""How much of a question's rise with its document's length attention must explain."""

MOST_RESIDENT: Final = 1.15
"""Resident set over the sum of its stated parts."""

MOST_GROWTH: Final = 0.01
"""Growth of the resident set over the second half of the requests, as a share of the sum of its stated parts."""

MOST_MEAN_DRIFT: Final = 0.03
MOST_DRIFT: Final = 0.10
"""Distance of log-odds from float32 on the check prompts, on average and at most."""
