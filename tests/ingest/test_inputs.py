"""What people type becomes a list of files, in an order that does not surprise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chunkstore.errors import ChunkstoreError, InputError
from ingest.difference import changed_files
from ingest.inputs import expand, natural_key, shown


@pytest.fixture
def tree(tmp_path):
    for name in (
        "a2.avro",
        "a10.avro",
        "b.AVRO",
        "._a1.avro",
        ".hidden.avro",
        "notes.txt",
        "x.avro/in.avro",
        "c/d/e.avro",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path


def names(found, root):
    return [os.path.relpath(f, root) for f in found]


def test_a_folder_is_searched_to_any_depth_in_natural_order(tree):
    found = names(expand(tree, [".avro"]), tree)
    assert found == ["a2.avro", "a10.avro", "b.AVRO", "c/d/e.avro", "x.avro/in.avro"]


def test_a_file_is_taken_whatever_its_name(tree):
    assert names(expand(tree / "notes.txt", [".avro"]), tree) == ["notes.txt"]


def test_a_folder_named_like_a_file_is_a_folder(tree):
    assert names(expand(tree / "x.avro", [".avro"]), tree) == ["x.avro/in.avro"]
    assert names(expand(str(tree / "*.avro"), [".avro"]), tree) == ["a2.avro", "a10.avro", "x.avro/in.avro"]


def test_globs_reach_down(tree):
    assert "c/d/e.avro" in names(expand(str(tree / "**" / "*.avro"), [".avro"]), tree)


def test_a_star_takes_only_what_the_source_can_read(tree):
    assert "notes.txt" not in names(expand(str(tree / "*"), [".avro"]), tree)


def test_lists_are_read_and_relative_to_themselves(tree):
    (tree / "list.txt").write_text("# two files\nb.AVRO\n\na2.avro\n@more.txt\n")
    (tree / "more.txt").write_text("c\n")
    assert names(expand(f"@{tree / 'list.txt'}", [".avro"]), tree) == ["b.AVRO", "a2.avro", "c/d/e.avro"]


def test_lists_that_name_each_other_end(tree):
    (tree / "list.txt").write_text("@list.txt\n")
    with pytest.raises(InputError, match="8 deep"):
        expand(f"@{tree / 'list.txt'}")


def test_a_file_named_twice_comes_once_and_arguments_keep_their_order(tree):
    found = expand([tree / "b.AVRO", tree / "a2.avro", tree / "b.AVRO"])
    assert names(found, tree) == ["b.AVRO", "a2.avro"]


@pytest.mark.parametrize("given", ["nowhere", "*.nothing", []])
def test_nothing_to_read_is_an_error(tree, given, monkeypatch):
    monkeypatch.chdir(tree)
    with pytest.raises(InputError):
        expand(given, [".avro"])


def test_urls_of_fsspec_are_found(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name in ("m10.avro", "m9.avro", "._m.avro", "other.txt"):
        memory.pipe_file(f"/expand-test/{name}", b"x")
    try:
        found = expand("memory://expand-test", [".avro"])
        assert [f.rsplit("/", 1)[-1] for f in found] == ["m9.avro", "m10.avro"]
    finally:
        memory.rm("/expand-test", recursive=True)


def test_numbers_sort_by_value_and_text_by_letter():
    assert sorted(["f10b", "f9", "f010a", "e"], key=natural_key) == ["e", "f9", "f010a", "f10b"]


def test_a_link_that_leads_nowhere_is_named_and_not_passed_over(tree):
    (tree / "c" / "gone.avro").symlink_to(tree / "nowhere")
    (tree / "c" / "gone.txt").symlink_to(tree / "nowhere")
    with pytest.raises(InputError, match=r"c/gone\.avro is a link that leads nowhere"):
        expand(tree, [".avro"])
    (tree / "c" / "gone.avro").unlink()
    assert len(expand(tree, [".avro"])) == 5  # what is not asked for may lead anywhere


def test_linked_folders_are_read_like_others_and_each_once(tree, tmp_path_factory):
    far = tmp_path_factory.mktemp("far")
    (far / "z.avro").write_bytes(b"x")
    (far / "back").symlink_to(tree)
    (tree / "link").symlink_to(far)
    (tree / "again").symlink_to(far)
    (tree / "own").symlink_to(tree / "c")
    found = names(expand(tree, [".avro"]), tree)
    assert found == ["a2.avro", "a10.avro", "again/z.avro", "b.AVRO", "c/d/e.avro", "x.avro/in.avro"]


def test_a_folder_that_cannot_be_read_is_an_error(tree, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("c"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match="/c cannot be read: Permission denied"):
        expand(tree, [".avro"])


def test_a_pipe_among_files_is_named(tree):
    os.mkfifo(tree / "p.avro")
    with pytest.raises(InputError, match=r"p\.avro is not a file"):
        expand(tree, [".avro"])


def test_a_glob_that_meets_a_link_back_names_each_file_once_by_its_shortest_path(tree):
    before = names(expand(str(tree / "**/*.avro"), [".avro"]), tree)
    (tree / "0loop").symlink_to(tree)
    (tree / "c" / "loop").symlink_to(tree / "c")
    assert names(expand(str(tree / "**/*.avro"), [".avro"]), tree) == before
    assert "c/d/e.avro" in before


def test_a_folder_under_two_names_is_read_once_and_a_link_to_a_file_is_a_file(tree, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "data"
    other.symlink_to(tree)
    assert expand([tree, other], [".avro"]) == expand(tree, [".avro"])
    (tree / "same.avro").symlink_to(tree / "a2.avro")
    assert len(expand(tree, [".avro"])) == len(expand(other, [".avro"])) == 6


def test_a_glob_that_matches_nothing_is_an_error_beside_others_too(tree):
    with pytest.raises(InputError, match=r"nothing matches .*typo"):
        expand([str(tree / "a2.avro"), str(tree / "typo*.avro")])


def test_urls_of_files_are_read_as_stores_read_them(tree):
    (tree / "my birds").mkdir()
    (tree / "my birds" / "1.avro").write_bytes(b"x")
    wanted = [str(tree / "my birds" / "1.avro")]
    for url in (f"file://{tree}/my%20birds", f"FILE://localhost{tree}/my%20birds"):
        assert expand(url, [".avro"]) == wanted
        (tree / "list.txt").write_text(f"{url}/1.avro\n")
        assert expand(f"@{tree / 'list.txt'}") == wanted


@pytest.mark.parametrize("name", ["a\u2028b.avro", "a\x0cb.avro", "a\udce9.avro"], ids=ascii)
def test_a_list_holds_any_name_but_that_of_two_lines(tree, name):
    (tree / name).write_bytes(b"x")
    (tree / "list.txt").write_bytes(b"\xef\xbb\xbf" + os.fsencode(name) + b"\r\n\n# none\n")
    assert expand(f"@{tree / 'list.txt'}") == [str(tree / name)]


def test_a_list_that_is_no_text_is_named(tree):
    (tree / "list.txt").write_bytes("a2.avro\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"list\.txt.* no UTF-8"):
        expand(f"@{tree / 'list.txt'}")


def test_credentials_in_urls_stand_in_no_message():
    pytest.importorskip("fsspec")
    for url in ("memory://me:hush@nowhere/x?sig=hush", "nosuch://me:hush@nowhere/x?sig=hush"):
        with pytest.raises(ChunkstoreError) as caught:
            expand(url)
        assert "hush" not in str(caught.value)
        assert "nowhere/x" in str(caught.value)
    assert changed_files(iter([[0, "https://me:hush@h/a?t=hush", "1"]]), []) == ["gone: https://h/a"]
    assert Path(shown("/data/a?b=c@d")) == Path("/data/a?b=c@d")
