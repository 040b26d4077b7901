"""Refuse docstrings that begin with a question word, and words retired from the project's vocabulary.

Run by `make check`. Checks docstrings, comments and names in Python files, messages and help texts (strings of several
words) in src/, and the prose of Markdown pages and notebooks, without code.

    python tools/check_words.py [--count] [PATH ...]

`--count` prints the number of findings by package instead of each one, and always succeeds.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPENINGS = ("What", "Who", "Whose", "Whether", "Of", "That")
"""First words that a docstring may not have; STYLE: say what the thing is or does, verb or noun first."""
RETIRED = {
    "lend": "provide",
    "lends": "provides",
    "lent": "provided, infused",
    "lender": "knowledge provider",
    "lenders": "knowledge providers",
    "lending": "providing",
    "guest": "entity token, extra token",
    "guests": "entity tokens, extra tokens",
    "offers": "candidates",
    "told": "result, output, metadata; given, reported",
    "shelf": "registry",
    "crew": "process group",
    "heed": "use, obey",
    "heeds": "uses",
    "heeded": "used",
    "befit": "suit",
    "befits": "suits",
    "whoever": "name the caller, client or user",
}
"""Retired word -> replacement."""
EXEMPT = ("docs/log.md", "CHANGELOG.md", "docs/decisions", "docs/papers", "tools/check_words.py")
"""Records of the past, and quotations."""
RECIPE_KEY = "offers"
"""Key of recipes, linker.json and encoder inputs that is kept: allowed as an annotated field of a class, in prose as
the TOML table [offers] or [offers.NAME], and as the quoted key ["offers"]."""
QUOTED = {
    "src/wellread/models/knowbert/mention_cache.py": "wellread offers 1",
    "src/wellread/data/synthetic/templates.py": "yes, my friends told me so as well.",
    "src/wellread/kb/readers/name_uses.py": "who whom whose whoever one ones",
    "src/wellread/text/stopwords.py": "who whom whoever someone anyone",
}
"""File -> text in it that is data, not prose: the name of a file format, generated text, lists of stop words."""
_OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b")
_RETIRED = re.compile(rf"\b({'|'.join(RETIRED)})\b", re.IGNORECASE)
_IDENTIFIER = re.compile(rf"(?<![a-z])({'|'.join(RETIRED)})(?![a-z])", re.IGNORECASE)
_KEY = re.compile(rf"\[{RECIPE_KEY}(?=[\].])|\[\"{RECIPE_KEY}\"\]")
_FENCED = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)

Finding = tuple[Path, int, str]


def check_python(path: Path) -> Iterator[Finding]:
    """Yield findings in docstrings, comments and the names and, in src/, messages."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    fields = {
        id(part.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id == RECIPE_KEY
    }
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    has_messages = "src" in path.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = node.value.value
            if found := _OPENING.match(text.lstrip()):
                yield path, node.lineno, f'docstring begins with "{found[1]}"; begin with a verb or a noun'
            yield from _check_text(path, _without_code(text), node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if has_messages and " " in node.value.strip():
                yield from _check_text(path, node.value.replace("\n", " "), node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _check_name(path, node.name, node.lineno)
        elif isinstance(node, ast.arg):
            yield from _check_name(path, node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield from _check_name(path, node.id, node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _check_text(path, _without_code(token.string), token.start[0])


def check_page(path: Path) -> Iterator[Finding]:
    """Yield findings in the prose of a Markdown page, without its code."""
    yield from _check_text(path, _without_code(path.read_text("utf-8")), 1)


def check_notebook(path: Path) -> Iterator[Finding]:
    """Yield findings in the Markdown cells of a notebook; the line is the number of the cell."""
    for number, cell in enumerate(json.loads(path.read_text("utf-8"))["cells"], 1):
        if cell["cell_type"] == "markdown":
            for _, _, reason in _check_text(path, _without_code("".join(cell["source"])), number):
                yield path, number, reason


CHECKS = {".py": check_python, ".md": check_page, ".ipynb": check_notebook}


def _without_code(text: str) -> str:
    """Blank out code blocks and inline code, keeping line numbers."""
    return _FENCED.sub(lambda code: "\n" * code[0].count("\n"), text)


def _check_text(path: Path, text: str, line: int) -> Iterator[Finding]:
    for allowed in (quoted for name, quoted in QUOTED.items() if path.resolve() == ROOT / name):
        text = text.replace(allowed, "")
    text = _KEY.sub("", text)
    for found in _RETIRED.finditer(text):
        yield path, line + text.count("\n", 0, found.start()), _reason(found[1])


def _check_name(path: Path, name: str, line: int) -> Iterator[Finding]:
    if found := _IDENTIFIER.search(name.replace("_", " ")):
        yield path, line, f"name {name}: {_reason(found[1])}"


def _reason(word: str) -> str:
    return f'retired word "{word}"; use: {RETIRED[word.lower()]}'


def files_of(paths: list[Path]) -> Iterator[Path]:
    """Yield the files to check below some paths."""
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.resolve().relative_to(ROOT).as_posix() if file.resolve().is_relative_to(ROOT) else file.name
            if file.suffix in CHECKS and not name.startswith(EXEMPT) and ".ipynb_checkpoints" not in file.parts:
                yield file


def check(paths: list[Path]) -> list[Finding]:
    """Return all findings below some paths."""
    return [finding for file in files_of(paths) for finding in CHECKS[file.suffix](file)]


def _package(path: Path) -> str:
    """Return the folder that findings are counted for: src/wellread/kb, tests/kb, docs."""
    folders = path.relative_to(ROOT).parts[:-1] if path.is_relative_to(ROOT) else path.parts[:-1]
    return "/".join(folders[: 3 if folders[:1] == ("src",) else 2]) or path.name


def main() -> None:
    """Print findings and exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders; by default the whole project")
    parser.add_argument("--count", action="store_true", help="print numbers by package, and succeed")
    options = parser.parse_args()
    default = [ROOT / name for name in ("src", "tests", "tools", "benchmarks", "docs", "notebooks", "README.md")]
    findings = check(options.paths or default)
    if options.count:
        for package, count in sorted(Counter(_package(path) for path, _, _ in findings).items()):
            sys.stdout.write(f"{count:6} {package}\n")
        sys.stdout.write(f"{len(findings):6} in all\n")
        return
    for path, line, reason in findings:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        sys.stdout.write(f"{name}:{line}: {reason}\n")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
