from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import main, profile_plan
from benchmarks.options import parse
from benchmarks.systems.catalogue import SPECS
from benchmarks.vocabulary import load_vocabulary
from benchmarks.workloads import TITLES, build_workload


def test_list_names_every_workload_and_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0

    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in (*TITLES, *SPECS, "MEMORY", "PROFILE"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "W9"], "no workload is called W9"),
        (["--model", "/no/such/model"], "there is no model '/no/such/model'"),
    ],
)
def test_run_that_cannot_begin_says_why(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--only", "PROFILE"], {"ours": ["W1", "W2", "W3", "W4", "W5"], "ours-http": ["W1", "W2", "W3", "W4"]}),
        (["--only", "W1,SWEEP"], {"ours": ["SWEEP"]}),
        (["--only", "PROFILE,SWEEP", "--systems", "ours-http,hf-pad"], {"ours-http": ["W1", "W2", "W3", "W4"]}),
        (["--only", "W1"], {}),
    ],
)
def test_profile_is_of_our_systems_in_the_run_and_the_sweep_has_one(
    arguments: list[str], wanted: dict[str, list[str]]
) -> None:
    workloads = {name: build_workload(name, "tiny", load_vocabulary()) for name in TITLES}

    plan = profile_plan(parse(arguments), workloads)

    assert {system: [workload.name for workload in found] for system, found in plan.items()} == wanted


@pytest.mark.parametrize("content", [b"", b"no records\n", b'{"type":"fault","system":"a","message":"b"}\n'])
def test_file_that_holds_no_finished_run_is_not_shown(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)

    assert main(["--report", str(path)]) == 2
    assert "cannot be shown" in capsys.readouterr().err
