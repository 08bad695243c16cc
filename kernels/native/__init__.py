"""Native operations for a CPU: C, built when first needed, checked before use.

PyTorch's own operations are used where no compiler is at hand or the check fails; results
agree within rounding.
"""

from kernels.native.attention import NativeAttention
from kernels.native.attention_work import AttentionCut, AttentionWork
from kernels.native.build import build_library, find_library
from kernels.native.feed_forward8 import NativeFeedForward8
from kernels.native.linear import NativeLinear
from kernels.native.ops import NativeOps, load_native_ops
from kernels.native.spans import NativeSpanCheck

__all__ = [
    "AttentionCut",
    "AttentionWork",
    "NativeAttention",
    "NativeFeedForward8",
    "NativeLinear",
    "NativeOps",
    "NativeSpanCheck",
    "build_library",
    "find_library",
    "load_native_ops",
]
