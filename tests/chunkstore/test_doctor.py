"""The doctor looks, measures and advises; it leaves nothing behind."""

import json

from chunkstore import doctor


def test_the_findings_are_json_and_leave_no_file(tmp_path):
    found = doctor.examine(folder=tmp_path).to_json()
    json.dumps(found, allow_nan=False)
    assert set(found["sections"]) == {"versions", "fast paths", "processes", "resources", "speed here"}
    assert list(tmp_path.iterdir()) == []


def test_speeds_are_measured_only_when_asked_for():
    assert "speed here" not in doctor.examine(measure=False).sections


def test_a_folder_that_cannot_be_written_is_advice_and_not_a_crash(tmp_path):
    diagnosis = doctor.examine(folder=tmp_path / "absent" / "..")  # exists for nobody to write in
    assert any("disk" in f.name for f in diagnosis.sections["speed here"])


def test_fork_is_advised_against(monkeypatch):
    import multiprocessing

    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "fork")
    (finding,) = [f for f in doctor._processes() if f.name.startswith("start method")]
    assert "forkserver" in finding.advice


def test_the_tables_fit_a_page(capsys):
    doctor.examine(measure=False).show()
    out = capsys.readouterr().out
    assert "fast paths" in out
    assert max(map(len, out.splitlines())) <= 200
