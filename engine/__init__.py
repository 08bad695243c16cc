"""Token ids in, scores out. No text, no web, no metrics library.

The names re-exported here are free of torch, so that a service can be built and tested
against a fake engine without loading it.
"""

from engine.api import Engine, EngineObserver
from engine.errors import (
    CheckpointError,
    DeadlineExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    EngineFault,
    InvalidTask,
    OutOfCapacity,
)
from engine.records import (
    EngineHealth,
    EngineInfo,
    EngineSnapshot,
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    LikelihoodReadout,
    Outcome,
    Readout,
    Row,
    RowResult,
    RowUsage,
    ScoreResult,
    ScoreTask,
    StepStats,
    TaskStats,
    TokenIds,
    Unscored,
)

__all__ = [
    "CheckpointError",
    "DeadlineExceeded",
    "DeviceError",
    "Engine",
    "EngineClosed",
    "EngineError",
    "EngineFault",
    "EngineHealth",
    "EngineInfo",
    "EngineObserver",
    "EngineSnapshot",
    "InvalidTask",
    "LabelOutcome",
    "LabelReadout",
    "LikelihoodOutcome",
    "LikelihoodReadout",
    "OutOfCapacity",
    "Outcome",
    "Readout",
    "Row",
    "RowResult",
    "RowUsage",
    "ScoreResult",
    "ScoreTask",
    "StepStats",
    "TaskStats",
    "TokenIds",
    "Unscored",
]
