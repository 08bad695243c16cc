"""Calibrations: how far the scores of one model under one template are to be believed, as a file.

A calibration is fitted by ``scorer calibrate`` on pairs whose answers are known, loaded by a
setting, and named in every reply that it changed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

Method: TypeAlias = Literal["temperature", "platt"]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]


class CalibrationError(ValueError):
    """A calibration cannot be used; the message names the file, the field and the value."""


class Platt(Struct, frozen=True, forbid_unknown_fields=True):
    """``sigmoid(slope * score + intercept)`` is the probability that the answer is yes (Platt 1999)."""

    slope: Positive
    intercept: float


class Fit(Struct, frozen=True, forbid_unknown_fields=True):
    """What a calibration was fitted on, and what it did there; for people."""

    num_examples: int
    log_loss_before: float
    log_loss_after: float
    ece_before: float
    ece_after: float


class Calibration(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One version of one calibration.

    Args:
        revision: Of the checkpoint; with another one the calibration is refused.
        template: ``name@version``.
        temperature: Divides the log-weights of labels (Guo et al. 2017); 1 under ``platt``.
        platt: Maps the score to a probability; None under ``temperature``.
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9-]+$")]
    version: Annotated[int, Meta(ge=1)]
    method: Method
    model: str
    revision: str
    template: str
    temperature: Positive = 1.0
    platt: Platt | None = None
    fit: Fit | None = None

    @property
    def id(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        CalibrationError: the file cannot be read or is not a calibration.
    """
    try:
        calibration = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path} is not a calibration: {error}") from error
    numbers = [
        calibration.temperature,
        *((calibration.platt.slope, calibration.platt.intercept) if calibration.platt else ()),
    ]
    if not all(map(math.isfinite, numbers)):
        raise CalibrationError(f"{path}: a number is not finite")
    if (calibration.method == "platt") != (calibration.platt is not None):
        raise CalibrationError(f"{path}: method is {calibration.method!r}; `platt` belongs to the method of this name")
    if calibration.method == "platt" and calibration.temperature != 1.0:
        raise CalibrationError(f"{path}: temperature is {calibration.temperature}; under the method 'platt' it is 1")
    return calibration


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Put a calibration into a file that :func:`read_calibration` takes.

    Raises:
        CalibrationError: the name is no name, or the file cannot be written.
    """
    content = msgspec.json.encode(calibration)
    try:
        msgspec.json.decode(content, type=Calibration)
        path.write_bytes(msgspec.json.format(content, indent=2) + b"\n")
    except msgspec.ValidationError as error:
        raise CalibrationError(f"not a calibration: {error}") from error
    except OSError as error:
        raise CalibrationError(f"{path} cannot be written: {error.strerror}") from error


def check_calibration(calibration: Calibration, *, revision: str, templates: list[str]) -> None:
    """Refuse a calibration that was fitted on something else than what is served.

    Raises:
        CalibrationError: the checkpoint is another one, or the template is not offered.
    """
    if calibration.revision != revision:
        raise CalibrationError(
            f"calibration {calibration.id} was fitted on revision {calibration.revision} of {calibration.model}; "
            f"revision {revision} is served"
        )
    if calibration.template not in templates:
        raise CalibrationError(
            f"calibration {calibration.id} was fitted for template {calibration.template}, which is not offered; "
            f"there are {', '.join(templates)}"
        )
