"""What can go wrong in the engine, sorted by what the caller can do about it.

    EngineError
      InvalidTask         the task can never run; change it               not retryable
      OutOfCapacity       no room now; the same task may run later        retryable
      DeadlineExceeded    the deadline passed before any row was scored   retryable
      EngineClosed        the engine is draining or has stopped           retryable elsewhere
      EngineFault         a step failed; every task in it is lost         not retryable here
      CheckpointError     the model cannot be loaded; start-up only       fix the files
      DeviceError         the device cannot be used; start-up only        fix the settings

Every submitted task ends exactly once: with a result or with one of these.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""

    retryable = False


class InvalidTask(EngineError):
    """The task breaks a limit or refers to something that does not exist.

    Args:
        message: States what was wanted and what was got.
        row: Index of the offending row, if one row is to blame.
    """

    def __init__(self, message: str, *, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class OutOfCapacity(EngineError):
    """The queue (or the block pool, inside the engine) has no room for this at the moment."""

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(EngineError):
    """The deadline of the task passed before the first of its rows was scored."""

    retryable = True


class EngineClosed(EngineError):
    """The engine takes no new work: it is draining, stopped, or never started."""

    retryable = True


class EngineFault(EngineError):
    """A step raised. Tasks in that step are lost; the cause is chained."""


class CheckpointError(EngineError):
    """A model folder or file cannot be turned into a model; names the file, tensor or field."""


class DeviceError(EngineError):
    """The device is missing, too old or too small, or cannot do what a setting asks."""
