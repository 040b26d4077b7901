"""README and docs are run: every Python block as a doctest, every console block with the lines it promises.

Blocks of "python" are doctests and share names within a page. In blocks of "console" the lines after "$ " are run, and
the lines below a command must be found in its output. Those of the README, and all that need a shell, have processes of
their own; loading torch takes seconds, so the others are run in this one. What is not run (`SHOWN`) is at least read
where it can be; a block in any other language is refused, so that no code on a page goes unnoticed. Lines indented by
four spaces are commands that need data of one's own, and are not run: `tests/project/test_docs_commands.py` reads them.
"""

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = ("README.md", "docs/embed.md")
"""Pages whose blocks take the longest."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^([ >]*)(```+|~~~+)(.*)$", re.MULTILINE)
RUN = ("python", "console")
SHOWN = {
    "shell": "for a fresh machine: may only call make and pip",
    "toml": "a recipe or a part of one: must be TOML",
    "json": "an answer or a file: must be JSON",
    "csv": "a file",
    "text": "pictures, and commands that need data or never end: read by tests/project/test_docs_commands.py",
}
"""Languages of blocks that are not run, and what they are for."""


def named(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page, language):
    return [match[2] for match in BLOCK.finditer(page.read_text("utf-8")) if match[1] == language]


def with_blocks(language):
    return [
        pytest.param(page, id=named(page), marks=[pytest.mark.slow] if named(page) in SLOW else [])
        for page in PAGES
        if blocks(page, language) and page.name != "tutorial.md"  # tests/project/test_tutorial.py types it in one shell
    ]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    from wellread.assets import is_cached
    from wellread.kb.packaged import kb_path

    if not all(kb_path(name).exists() for name in ("wordnet", "vital")) or not is_cached("minilm"):
        pytest.skip("the packaged knowledge bases are not built; run: make assets")
    if not Path(f"{kb_path('vital')}.vectors", "index.json").exists():
        pytest.skip("the vital articles are not encoded; run: make assets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_on_the_page_gives_what_it_shows(page, workplace):
    text = "\n".join(blocks(page, "python"))
    tests = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(tests, out=report.append)
    assert not report, "".join(report)
    assert tests.examples


def arguments_of(command):
    """The words after `wellread` where no more is typed: "wellread fetch 'a b'" -> ["fetch", "a b"]; else None."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    name, *words = lexer
    shell = any(set(word) <= set("();<>|&") or set(word) & set("$`*~") for word in words)
    return words if name == "wellread" and not shell else None


@pytest.mark.parametrize("page", with_blocks("console"))
def test_commands_on_the_page_print_what_it_shows(page, workplace, wellread):
    count = 0
    for block in blocks(page, "console"):
        for command, *promised in map(str.splitlines, re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]):
            arguments = arguments_of(command)
            if arguments is None or named(page) == "README.md":
                process = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=250)
                code, out, err = process.returncode, process.stdout, process.stderr
            else:
                done = wellread(*arguments)
                code, out, err = done.code, done.out, done.err
            assert code == 0, f"{command}\n{err}"
            for line in promised:
                assert line in out, f"{command}\nprinted\n{out}\nnot\n{line}"
            count += 1
    assert count


def test_what_needs_a_shell_gets_one():
    assert arguments_of('wellread link --kb x "is a|b; > (c) here?" --to y.html') == (
        ["link", "--kb", "x", "is a|b; > (c) here?", "--to", "y.html"]
    )
    for command in (
        "echo a | wellread link",
        "wellread kb export x > y",
        "wellread link $A",
        "A=1 wellread link",
        "ls",
    ):
        assert arguments_of(command) is None


def test_pages_and_blocks_are_found():
    assert len(PAGES) >= 50
    assert len(with_blocks("python")) >= 20
    assert len(with_blocks("console")) >= 8


def fences(text):
    """(indent, language) of every block that is fenced in, and None where one never ends."""
    inside = None
    for indent, fence, about in FENCE.findall(text):
        if inside is None:
            inside = fence
            yield indent, about.strip()
        elif fence.startswith(inside) and not about.strip():
            inside = None
    if inside is not None:
        yield None


def test_fences_are_seen_wherever_they_stand():
    text = "```python\n1\n```\n- a\n\n    ```toml\n    ```\n~~~\n```x\n~~~\n````md\n```\n````\n```console"
    assert list(fences(text)) == [("", "python"), ("    ", "toml"), ("", ""), ("", "md"), ("", "console"), None]


def test_every_block_is_run_or_of_a_language_that_is_only_shown():
    found = [(named(page), fence) for page in PAGES for fence in fences(page.read_text("utf-8"))]
    assert len(found) >= 100
    assert [(page, fence) for page, fence in found if fence is None or fence[1] not in (*RUN, *SHOWN)] == []
    # The blocks that are run are those that begin a line.
    assert [(page, fence) for page, fence in found if fence[1] in RUN and fence[0]] == []
    runnable = sum(len(blocks(page, language)) for page in PAGES for language in RUN)
    assert runnable == sum(fence[1] in RUN for _, fence in found)


def test_what_is_shown_can_be_read():
    for page in PAGES:
        for block in blocks(page, "toml"):
            assert tomllib.loads(block), named(page)
        for block in blocks(page, "json"):
            json.loads(block)


def test_what_is_not_run_calls_only_make_and_pip():
    lines = [line for page in PAGES for block in blocks(page, "shell") for line in block.splitlines()]
    assert lines
    assert {line.split()[0] for line in lines} <= {"make", "pip"}


def test_every_link_between_pages_leads_somewhere():
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
        if "://" not in target
    ]
    assert len(links) >= 8
    assert [(named(page), target) for page, target in links if not (page.parent / target).exists()] == []


def test_decisions_are_short():
    decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert len(decisions) >= 4
    assert [page.name for page in decisions if len(page.read_text("utf-8").splitlines()) > 30] == []
