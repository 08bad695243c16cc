"""The tensor operations of a decoder step, each with a plain judge.

Two sets implement one contract (:class:`kernels.api.KernelSet`): ``cpu`` is tuned for a
CPU, ``reference`` is the float32 judge.
"""
