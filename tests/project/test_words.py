"""The check of words finds what it should, where it should, and nothing else."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "check_words.py"


@pytest.fixture(scope="module")
def words():
    spec = importlib.util.spec_from_file_location("check_words", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(words, path):
    return [line for _, line, _ in words.check([path])]


@pytest.mark.parametrize(
    "first", ["What it is.", "Whether it is.", "Of the first.", "That of it.", "Who does.", "Whose?"]
)
def test_docstrings_that_begin_with_a_question_word_are_found(words, tmp_path, first):
    file = tmp_path / "module.py"
    file.write_text(f'"""Good."""\n\n\ndef f():\n    """{first}"""\n\n\nX = 1\n"""{first}"""\n')
    assert sorted(lines(words, file)) == [5, 9]


def test_other_docstrings_and_strings_are_not(words, tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""Whatever; Office."""\n\nX = "What was told to whoever"\n\n\ndef f():\n    """Return it."""\n')
    assert lines(words, file) == []


def test_retired_words_are_found_in_docstrings_comments_and_names(words, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""Good.\n\nWhoever asks.\n"""\n\nshelf = 1  # told\n\n\ndef lend_it(guests):\n    """`told` is code."""\n'
    )
    assert sorted(lines(words, file)) == [3, 6, 6, 9, 9]


def test_a_recipe_key_is_allowed_only_as_a_key(words, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""A KB in [offers] or [offers.NAME], arrays["offers"]."""\n\n\n'
        'class Recipe:\n    offers: dict\n    """Table."""\n'
        '\n\noffers = 1  # `offers` of a recipe\n"""All offers."""\n'
    )
    assert sorted(lines(words, file)) == [9, 10]


def test_messages_are_checked_in_the_source(words, tmp_path):
    file = tmp_path / "src" / "module.py"
    file.parent.mkdir()
    file.write_text('X = f"{1} was told"\nY = "told"\nZ = "good news"\n')
    assert lines(words, file) == [1]


def test_pages_are_checked_without_their_code(words, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n`told` is code.\n\n```python\n>>> told\n```\n\nIt is told.\n")
    assert lines(words, page) == [9]


def test_markdown_cells_of_notebooks_are_checked(words, tmp_path):
    notebook = tmp_path / "one.ipynb"
    cells = [{"cell_type": "code", "source": ["told = 1"]}, {"cell_type": "markdown", "source": ["It is ", "lent."]}]
    notebook.write_text(json.dumps({"cells": cells}))
    assert lines(words, notebook) == [2]


def test_the_command_fails_on_findings_and_counts_them(tmp_path):
    (tmp_path / "page.md").write_text("told\n\ntold\n")
    run = [sys.executable, str(TOOL), str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.count("\n")) == (1, 2)
    assert 'page.md:1: retired word "told"; use: result' in done.stdout
    done = subprocess.run([*run, "--count"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1].split() == ["2", "in", "all"]
