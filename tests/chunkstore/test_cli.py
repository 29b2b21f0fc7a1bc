"""The borders of the command line: one line an error, exit codes, suggestions, other packages' verbs."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chunkstore
from chunkstore import __version__, cli, errors


def run(capsys, *words):
    code = cli.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_version_is_shown_and_nothing_else(capsys):
    assert run(capsys, "--version") == (0, f"chunkstore {__version__}\n", "")


def test_no_arguments_show_the_help(capsys):
    code, out, _ = run(capsys)
    assert code in (0, 2)
    assert "doctor" in out


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("docter",), "doctor"),
        (("doctor", "--jsno"), "--json"),
        (("inof", "x.zarr"), "info"),
        (("info", "x.zarr", "--jso"), "--json"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest_in_one_line(capsys, words, near):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert near in err
    assert "--help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.MemoryLimitError("x"), 2),
        (errors.NotAStoreError("x"), 2),
        (errors.StoreNotFoundError("x"), 2),
        (errors.StoreExistsError("x"), 2),
        (errors.UnknownNameError("x"), 2),
        (errors.InputError("x"), 2),
        (errors.CorruptDataError("x"), 1),
        (errors.IncompleteStoreError("x"), 1),
        (errors.UnsupportedError("x"), 1),
        (OSError("x"), 1),
        (RuntimeError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_says_who_can_put_it_right(error, code):
    assert cli.exit_code(error) == code


@pytest.fixture
def failing(monkeypatch):
    """A verb `fail` that raises what the test puts in."""
    import typer

    app = typer.Typer()
    holder = {}

    @app.callback()
    def root():
        pass

    @app.command()
    def fail():
        raise holder["error"]

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "_load_verbs", lambda target: None)
    return holder


def test_an_error_of_ours_is_its_message_in_one_line(capsys, failing):
    failing["error"] = errors.ConfigError("window 0 is too short;\n   use 1 or more")
    assert run(capsys, "fail") == (2, "", "chunkstore: window 0 is too short; use 1 or more\n")


def test_an_unexpected_error_is_named_as_such_and_leads_to_debug(capsys, failing):
    failing["error"] = TypeError("boom")
    code, _, err = run(capsys, "fail")
    assert code == 1
    assert err.count("\n") == 1
    assert "unexpected TypeError: boom" in err
    assert "--debug" in err


@pytest.mark.parametrize("words", [("--debug", "fail"), ("fail", "--debug")])
def test_debug_shows_the_trace_wherever_it_stands(capsys, failing, words):
    failing["error"] = errors.ConfigError("boom")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "Traceback" in err
    assert err.rstrip().endswith("chunkstore: boom")


def test_an_interrupt_exits_with_130(capsys, failing):
    failing["error"] = KeyboardInterrupt()
    assert run(capsys, "fail") == (130, "", "chunkstore: interrupted\n")


def test_verbs_that_cannot_be_loaded_do_not_take_ours_with_them(capsys, monkeypatch):
    import importlib.metadata

    entry = importlib.metadata.EntryPoint("broken", "no_such_module:register", "chunkstore.cli")
    monkeypatch.setattr(cli, "_entry_points", lambda: [entry])
    code, out, err = run(capsys, "doctor", "--quick", "--json")
    cli._loaded.discard("broken")
    assert code == 0
    assert "versions" in json.loads(out)["sections"]
    assert "no_such_module" in err


def test_verbs_are_listed_in_the_order_of_their_use(capsys):
    _, out, _ = run(capsys, "--help")
    found = [word for word in re.findall(r"^\W*(\w+) ", out, re.MULTILINE) if word in cli.FAMILY]
    assert found == list(cli.FAMILY)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("info", "x.zarr", "json"), "--json"),
        (("verify", "x.zarr", "deep"), "--deep"),
        (("ingest", "audio", "metadata-key", "name", "-o", "x.zarr"), "--metadata-key"),
        (("ingest", "audio", "label_from", "parent", "-o", "x.zarr"), "--label-from"),
    ],
)
def test_an_option_without_its_dashes_is_answered_with_them(capsys, words, meant):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert f"did you mean {meant}?" in err
    assert err.count("\n") == 1


def test_a_word_that_nobody_refused_is_not_taken_for_an_option(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with chunkstore.StoreWriter("json", fields={"x": "f4"}) as out:
        out.write("a", {"x": [1.0]})
    assert run(capsys, "info", "json")[0] == 0
    _, _, err = run(capsys, "split", "json", "train/test", "--by", "week")
    assert "week" in err
    assert "did you mean" not in err


BASH = """
source <(chunkstore --show-completion)
COMP_WORDS=(chunkstore {words}); COMP_CWORD={at}
_chunkstore_completion chunkstore && printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("in",), {"ingest", "info"}),
        (("ingest", "au"), {"audio"}),
        (("ingest", "audio", "--meta"), {"--metadata", "--metadata-key"}),
        (("info", "x.zarr", "--js"), {"--json"}),
    ],
)
def test_bash_completes_verbs_and_options(words, found):
    program = Path(sys.executable).with_name("chunkstore")
    if not program.is_file():
        pytest.skip("the console script is not installed")
    script = BASH.format(words=" ".join(words), at=len(words))
    # by its name, as it is typed: its folder may have any name
    env = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert set(done.stdout.split()) == found, done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_completion_is_installed_for_bash(tmp_path):
    program = Path(sys.executable).with_name("chunkstore")
    if not program.is_file():
        pytest.skip("the console script is not installed")
    env = {**os.environ, "HOME": str(tmp_path)}
    command = f"{shlex.quote(str(program))} --install-completion; :"  # ";": so that bash stays the parent
    subprocess.run(["bash", "--norc", "-c", command], env=env, capture_output=True, timeout=60, check=True)
    check = "source ~/.bashrc; complete -p chunkstore"
    done = subprocess.run(
        ["bash", "--norc", "-c", check], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert "_chunkstore_completion" in done.stdout


def test_completion_knows_the_verbs():
    child = subprocess.run(
        [sys.executable, "-m", "chunkstore.cli", "--show-completion", "bash"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 0
    assert "COMPLETE" in child.stdout


def test_help_and_version_need_no_heavy_library():
    code = (
        "import sys; from chunkstore import cli; cli.run(['--version']); cli.run(['--help']);"
        "print(sorted({'numpy', 'zarr', 'torch', 'dask', 'xarray', 'pandas', 'numba'} & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert child.stdout.splitlines()[-1] == "[]"
