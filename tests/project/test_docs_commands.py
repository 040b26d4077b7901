"""Every `wellread …` that README, docs, recipes and notebooks tell to type is one that the command line knows.

Many need data of one's own, or hours, and are not run (`tests/project/test_docs.py` runs the others). So they are read
as click would read them: the verb is there, its options are its own, a choice is one of those it has, and a recipe
of ours is where it is said to be. Values are not looked into. Commands stand in blocks of any kind, between backticks,
and in the comments of recipes; what an ellipsis or a word in capitals stands for is anybody's guess.
"""

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from wellread.cli import wellread
from wellread.cli.defaults import DefaultGroup

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "log.md")]
"""The log tells what was typed when it was written."""
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

FENCED = re.compile(r"^[ >]*(```+|~~~+)[^`\n]*\n(.*?)^[ >]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}.*)?\n)+")
INLINE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
LIST = re.compile(r'\["wellread".*?\]')
BEFORE = re.compile(r"[$>!]|RUN|time|nohup|sudo|\w+=.*")
"""Words that may stand before the name of a command."""
NAME = re.compile(r"!?(ExecStart=)?(.*/)?wellread")
REDIRECTION = re.compile(r"[<>]+&?")


def commands_in(code):
    """The words after each `wellread` that code calls: "A=1 wellread x 'b c' | wellread y > z" -> [x, b c], [y]."""
    code = re.sub(r"\\\n\s*", " ", code)
    for line in code.splitlines():
        if "wellread" not in line:
            continue
        for listed in LIST.findall(line):
            yield json.loads(listed)[1:]
        words = list[str]()
        for word in (*_lexed(line), ";"):
            if not set(word) <= set("();<>|&") or REDIRECTION.fullmatch(word):
                words.append(word)
                continue
            if words := _after_wellread(words):
                yield words
            words = []


def _after_wellread(words):
    for number, word in enumerate(words):
        if NAME.fullmatch(word) and (words[number - 1] == "-m" or all(map(BEFORE.fullmatch, words[:number]))):
            kept = words[number + 1 :]
            aside = {place for at, word in enumerate(kept) if REDIRECTION.fullmatch(word) for place in (at, at + 1)}
            return [word for place, word in enumerate(kept) if place not in aside]
    return []


def _lexed(line):
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quote that another line ends
        return line.split()


def commands_on(text):
    """Those of a page: of its blocks, fenced in or indented, and of what stands between backticks."""
    blocks = []

    def take(match):
        blocks.append(match[match.lastindex or 0])
        return "\n"

    rest = INDENTED.sub(take, FENCED.sub(take, text))
    for paragraph in rest.split("\n\n"):
        blocks += [match[2].replace("\n", " ") for match in INLINE.finditer(paragraph)]
    for block in blocks:
        yield from commands_in(block)


def commands_in_comments(recipe):
    """Those that comments of a recipe name, wherever in a sentence they do."""
    for comment in re.findall(r"# *(.*)", recipe):
        for part in re.split(r"\b(?=wellread [a-z])", comment):
            for words in commands_in(part):
                yield [word.rstrip(",.;:") for word in words]


def fault_of(words):
    """Return the first fault of a command, or None: ["link", "--kbs"] -> "No such option: --kbs"."""
    command, context = wellread, click.Context(wellread, info_name="wellread")
    words = list(words)
    while isinstance(command, click.Group) and words:
        if isinstance(command, DefaultGroup) and words[0] not in (*command.commands, *context.help_option_names):
            words = [command.default, *words]
        if words[0].startswith("-"):
            break
        verb = words.pop(0)
        if verb == "…":
            return None
        below = command.get_command(context, verb)
        if below is None:
            return f"No such command: {context.command_path} {verb}"
        command, context = below, click.Context(below, info_name=verb, parent=context)
    try:
        # what stands last may be named without its value
        given, _, _ = command.make_parser(context).parse_args([*words, "…"])
    except click.UsageError as error:
        return error.format_message()
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(option.type, click.Choice) and option.name in given:
            chosen = given[option.name]
            for value in chosen if isinstance(chosen, list) else [chosen]:
                if isinstance(value, str) and not re.fullmatch(r"…|[A-Z]+", value) and value not in option.type.choices:
                    return f"{option.opts[0]} {value}: not one of {', '.join(option.type.choices)}"
    absent = [word for word in words if re.fullmatch(r"recipes/[\w-]+\.toml", word) and not (ROOT / word).exists()]
    return f"there is no {absent[0]}" if absent else None


def documented_commands():
    """(file, words) of every command."""
    for page in PAGES:
        yield from ((page.relative_to(ROOT).as_posix(), words) for words in commands_on(page.read_text("utf-8")))
    for recipe in RECIPES:
        yield from ((f"recipes/{recipe.name}", words) for words in commands_in_comments(recipe.read_text("utf-8")))
    for notebook in NOTEBOOKS:
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            text, is_code = "".join(cell["source"]), cell["cell_type"] == "code"
            yield from ((notebook.name, words) for words in (commands_in if is_code else commands_on)(text))


def test_every_documented_command_exists():
    found = list(documented_commands())
    assert [(file, shlex.join(words), fault) for file, words in found if (fault := fault_of(words))] == []
    files = {file for file, _ in found}
    assert len(found) >= 300
    assert len(files) >= 50
    assert {"README.md", "docs/server.md", "docs/howto/checkpoints.md", "recipes/kam-rte.toml"} <= files


def test_commands_are_found_in_code():
    code = (
        "$ wellread link 'a | b' --kb x > y.json  # it's wellread link\n"
        "A=1 wellread embed < in.txt | wellread kb search x && echo wellread done\n"
        "wellread compare a.toml \\\n    --seeds 3\n"
        "ExecStart=/opt/bin/wellread serve --kb vital\n"
        "accelerate launch --cpu -m wellread train RECIPE\n"
        'CMD ["wellread", "serve", "--port", "80"]\n'
        "RUN pip install wellread && useradd --system wellread && wellread fetch\n"
    )
    assert list(commands_in(code)) == [
        ["link", "a | b", "--kb", "x"],
        ["embed"],
        ["kb", "search", "x"],
        ["compare", "a.toml", "--seeds", "3"],
        ["serve", "--kb", "vital"],
        ["train", "RECIPE"],
        ["serve", "--port", "80"],
        ["fetch"],
    ]


def test_commands_are_found_in_every_kind_of_block():
    page = (
        "wellread link is prose, `wellread kb\nadd` is code, [`wellread index info`](x.md).\n\n"
        "```text\nwellread fetch\n```\n- a list\n\n    ```console\n    $ wellread train a\n    ```\n\n"
        "So:\n\n    wellread serve\n\n    wellread embed\n\nEnd.\n"
    )
    assert sorted(commands_on(page)) == (
        [["embed"], ["fetch"], ["index", "info"], ["kb", "add"], ["serve"], ["train", "a"]]
    )
    recipe = (
        '# First: wellread index build --kb x (glosses), or wellread kb embed.\na = "b"  # wellread fetch; then go on\n'
    )
    assert list(commands_in_comments(recipe)) == ([["index", "build", "--kb", "x"], ["kb", "embed"], ["fetch"]])


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("lnik text", "No such command: wellread lnik"),
        ("kb biuld csv", "No such command: wellread kb biuld"),
        ("link --kbs vital text", "--kbs"),
        ("train my.toml --too runs/x", "--too"),
        ("evaluate linking --kb x gold.jsonl --treshold 0.7", "--treshold"),
        ("link --format jsn text", "--format jsn: not one of table"),
        ("train recipes/nowhere.toml", "there is no recipes/nowhere.toml"),
        ("--verbose", "--verbose"),
    ],
)
def test_unknown_commands_and_options_are_reported(command, fault):
    assert fault in fault_of(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "--version",
        "kb",
        "kb build --help",
        "train my.toml --set a.b=c",
        "compare --jobs 2",
        "compare … --arms recipes/kam-ablations.toml",
        "kb build wikipedia … --paragraphs",
        "link [OPTIONS] TEXT --format FORMAT",
        "correlate show words.pmi river",
    ],
)
def test_what_it_knows_is_not(command):
    assert fault_of(command.split()) is None


def test_an_option_that_gets_another_name_is_missed_on_the_pages(monkeypatch):
    command = wellread.get_command(click.Context(wellread), "correlate").commands["count"]
    option = next(option for option in command.params if "--engine" in option.opts)
    monkeypatch.setattr(option, "opts", ["--motor"])
    missed = {file for file, words in documented_commands() if "--engine" in (fault_of(words) or "")}
    assert missed >= {"docs/correlation.md", "docs/scale.md"}
