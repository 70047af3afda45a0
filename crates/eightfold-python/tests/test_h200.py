"""What the device will measure, rehearsed on the CPU: the file is one that the command makes a record of."""

import json
import os
import subprocess
import sys

import pytest
from conftest import HAS_TORCH

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

pytest.importorskip("transformers", minversion="5")

import h200  # noqa: E402

JUNIT = """<testsuites><testsuite><testcase classname="test_cuda" name="test_one"/>
<testcase classname="test_cuda" name="test_two"><skipped/></testcase>
<testcase classname="test_cuda" name="test_three">HOW</testcase></testsuite></testsuites>"""


def rehearse(folder):
    (folder / "tests.xml").write_text(JUNIT.replace("HOW", ""))
    (folder / "checks.tsv").write_text("examples/c/device.c\t0\n")
    file = folder / "python.json"
    h200.main([str(file), "--checks", str(folder / "tests.xml"), "--checks", str(folder / "checks.tsv"), "--rounds", "2", "--rehearse"])
    return file


def test_a_rehearsal_becomes_a_record(tmp_path):
    file = rehearse(tmp_path)
    written = json.loads(file.read_text())
    assert [check["subject"] for check in written["tests"]["checks"]] == ["test_cuda::test_one", "test_cuda::test_three", "examples/c/device.c"]
    assert [model["served"] for model in written["run"]["models"]] == [2, 2]
    (decoded,) = written["run"]["generations"]
    assert decoded["served"] == 2 * 5 and len(decoded["differences"]) == 4 and 0 < max(decoded["differences"]) < 0.05
    command = [sys.executable, "-m", "eightfold", "records", str(tmp_path / "runs"), "--import", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2 and "built without the command" in done.stderr:
        assert not os.environ.get("EIGHTFOLD_REQUIRE_COMMAND"), done.stderr
        pytest.skip("this package was built without the command")
    assert done.returncode == 0 and len(list((tmp_path / "runs").glob("*-python/record.json"))) == 1, done.stdout + done.stderr
    written["tests"]["checks"][0]["findings"] = 1
    file.write_text(json.dumps(written))
    assert subprocess.run(command, capture_output=True).returncode == 1


def test_a_rehearsal_of_calls_alone_becomes_a_record_too(tmp_path):
    file = tmp_path / "calls.json"
    h200.main([str(file), "--rounds", "2", "--rehearse", "--calls"])
    run = json.loads(file.read_text())["run"]
    assert sorted(run) == ["shapes", "versions"]
    for shape in run["shapes"]:
        e4m3, int8 = shape["formats"]
        # The CPU takes E4M3 where nothing is asked for.
        assert shape["difference"] == e4m3["differences"][0] > int8["differences"][0] > 0
    done = subprocess.run([sys.executable, "-m", "eightfold", "records", str(tmp_path / "runs"), "--import", str(file)], capture_output=True, text=True)
    if not (done.returncode == 2 and "built without the command" in done.stderr):
        assert done.returncode == 0 and len(list((tmp_path / "runs").glob("*-python/record.json"))) == 1, done.stdout + done.stderr


def test_what_failed_is_counted(tmp_path):
    (tmp_path / "tests.xml").write_text(JUNIT.replace("HOW", "<failure/>"))
    checks = h200.read_checks([str(tmp_path / "tests.xml")])
    assert [check["findings"] for check in checks["checks"]] == [0, 1] and checks["by"].startswith("pytest ")
