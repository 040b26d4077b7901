"""The site of the docs: its menu has every page, what pages say of the code is there, and nothing is fetched."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import threading
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS, CODE = ROOT / "docs", ROOT / "src" / "wellread"
PAPERS = sorted((DOCS / "papers").glob("*.md"))
ARCHITECTURE = DOCS / "architecture.md"
REFERENCE = sorted((DOCS / "reference").glob("*.md"))


def load(name):
    """A module of the site's own: "hooks" is docs/look/hooks.py."""
    spec = importlib.util.spec_from_file_location(f"look_{name}", DOCS / "look" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS = load("hooks")
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


# what pages say of the code


@cache
def names_in(file):
    """Everything that a file defines, with what its classes do: {"Elq", "Elq.states", …}."""
    found = set()

    def walk(body, before):
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(f"{before}{node.name}")
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{before}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(f"{before}{target.id}" for target in targets if isinstance(target, ast.Name))

    walk(ast.parse(file.read_text("utf-8")).body, "")
    return found


def is_there(path, name):
    file = CODE / path
    return file.is_file() and name in names_in(file)


def test_what_is_not_in_the_code_is_not_found():
    assert is_there("models/elq/model.py", "Elq.states")
    assert is_there("models/elq/config.py", "FEATURES")
    assert not is_there("models/elq/model.py", "Elq.state")
    assert not is_there("models/elk.py", "Elq")


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_every_place_that_a_paper_names_is_in_the_code(page):
    places = HOOKS.PLACE.findall(page.read_text("utf-8"))
    assert len(places) >= (4 if page.stem == "index" else 15)
    assert [place for place in places if not is_there(*place)] == []


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_every_file_that_a_paper_names_is_there(page):
    text = page.read_text("utf-8")
    files = [name for name in re.findall(r"`([\w/]+\.py)`", text) if "/" in name]
    assert [name for name in files if not (ROOT / name).is_file()] == []
    # Whatever looks like a place is one that the test above has read.
    assert len(re.findall(r"\.py::", text)) == len(HOOKS.PLACE.findall(text))


def test_every_row_of_the_tables_of_places_names_one():
    tables = [page.read_text("utf-8").split("## Where each line is in the code\n")[1:] for page in PAPERS]
    rows = [row for table in tables if table for row in re.findall(r"^\| .* \|$", table[0].split("\n## ")[0], re.M)]
    rows = [row for row in rows if row != "| step | place |"]
    assert len(rows) >= 70
    assert [row for row in rows if not HOOKS.PLACE.search(row)] == []


def test_every_function_of_the_architecture_page_is_in_its_file():
    text = ARCHITECTURE.read_text("utf-8")
    places = HOOKS.PLACE.findall(text)
    assert [place for place in places if not is_there(*place)] == []
    assert len(places) == len(re.findall(r"\.py::", text)) >= 50
    assert re.findall(r"^## `wellread (\w+)", text, re.M) == ["link", "map", "train", "serve"]


def test_there_is_a_page_for_each_model():
    assert {page.stem for page in PAPERS} == {"index", "elq", "kam", "knowbert", "luke"}


def referred():
    """(page, module, name) of all that the reference shows."""
    for page in REFERENCE:
        for shown, members in re.findall(
            r"^::: wellread\.([\w.]+)\n(?: +options:\n +members: \[(.*)\]\n)?", page.read_text("utf-8") + "\n", re.M
        ):
            if members:
                yield from ((page.name, shown, name) for name in members.split(", "))
            else:
                yield page.name, *shown.rpartition(".")[::2]


def test_every_name_of_the_reference_is_in_the_code():
    def files(module):
        path = module.replace(".", "/")
        return (f"{path}.py", f"{path}/__init__.py")

    names = list(referred())
    assert len(names) >= 150
    missing = [one for one in names if one[1] and not any(is_there(file, one[2]) for file in files(one[1]))]
    assert missing == []


def test_the_reference_has_what_wellread_exports():
    import wellread

    shown = {name for _, _, name in referred()}
    assert set(wellread.__all__) - {"__version__"} <= shown
    assert {"infuse", "KamConfig", "KnowBertConfig", "LukeConfig", "ElqConfig", "TaskRecipe", "Schedule"} <= shown


# the menu


def pages_of(nav):
    if isinstance(nav, dict):
        return [page for part in nav.values() for page in pages_of(part)]
    return [page for part in nav for page in pages_of(part)] if isinstance(nav, list) else [nav]


def test_the_menu_has_every_page_once_and_no_other():
    menu = pages_of(HOOKS.expand(CONFIG["nav"], DOCS))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | {"weights.md"}
    assert len(pages) >= 50
    assert sorted(menu) == sorted(pages)


def test_a_pattern_is_the_pages_of_a_folder_its_index_first(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("b.md", "a.md", "d.md", "c.txt"):
        (tmp_path / "a" / name).touch()
    nav = [{"One": "a/*.md"}, "two.md"]
    assert HOOKS.expand(nav, tmp_path) == [{"One": ["a/a.md", "a/b.md", "a/d.md"]}, "two.md"]
    (tmp_path / "a" / "index.md").write_text("[d](d.md), [b](b.md), [two](../two.md)")
    assert HOOKS.expand(nav, tmp_path) == [{"One": ["a/index.md", "a/d.md", "a/b.md", "a/a.md"]}, "two.md"]


# how pages are made


def test_formulae_become_mathml():
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed; see: make docs")
    html = r'a <span class="arithmatex">\(a_i &lt; 2\)</span><div class="arithmatex">\[\sqrt{d}\]</div>'
    drawn = HOOKS.on_page_content(html)
    log = HOOKS.on_page_content(r'<span class="arithmatex">\(\log p + \log(p) + \operatorname{LN}\)</span>')
    assert drawn.count("<math") == 2
    assert "<msub>" in drawn
    assert "<msqrt>" in drawn
    assert "arithmatex" not in drawn
    assert log.count("<mspace") == 1
    assert "<mi>LN</mi>" in log
    assert 'display="block"' in drawn.split('<div class="formula">')[1]


class Page:
    """As much of a page of mkdocs as hooks look at."""

    def __init__(self, uri):
        self.file = type("File", (), {"src_uri": uri})


def test_pages_are_prepared_for_the_site():
    text = "`models/elq/model.py::Elq.states` [w](../../src/wellread/weights/README.md)\n"
    made = HOOKS.on_page_markdown(f"{text}```python\n>>> 1\n```\n```python\nx\n```", Page("papers/elq.md"))
    assert 'identifier="wellread.models.elq.model.Elq.states"' in made
    assert "[w](../weights.md)" in made
    assert "```pycon\n>>> 1" in made
    assert "```python\nx" in made
    package = HOOKS.on_page_markdown("`plots/__init__.py::linked_page`", Page("index.md"))
    assert 'identifier="wellread.plots.linked_page"' in package


def test_docstrings_are_shown_as_they_are_meant():
    pytest.importorskip("griffe", reason="griffe is not installed; see: make docs")
    readable = load("docstrings").readable
    assert readable("A <s> of `a < b`, a[b][c].") == "A &lt;s> of `a < b`, a[b]&#91;c]."
    assert readable("So:\n>>> 1 < 2\nTrue\n\nAnd on.") == "So:\n\n```pycon\n>>> 1 < 2\nTrue\n```\n\nAnd on."
    assert readable(">>> 1") == "```pycon\n>>> 1\n```"
    assert readable("1. one\n\n    a <b>\n\n      c\n\nEnd.") == "1. one\n\n```\na <b>\n\n  c\n```\n\nEnd."


# the site itself


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built where no network can be reached; a warning would have failed it."""
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason=f"{package} is not installed; see: make docs")
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Fetched(HTMLParser):
    """Addresses that a browser fetches for a page by itself, without the targets of its links."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        """Scripts, styles, fonts, pictures, frames."""
        values = dict(attributes)
        if tag != "a":
            names = ("src", "srcset", "data", "poster") + (("href",) if tag == "link" else ())
            self.found += [values[name] for name in names if values.get(name)]


def is_foreign(address):
    return re.match(r"\s*(?:[a-z]+:)?//", address, re.IGNORECASE) is not None


def test_foreign_addresses_are_distinguished_from_own():
    fetched = Fetched(
        '<a href="https://a.b"><script src="//c.d/x.js"></script><link href="../x.css"><img src="data:x">'
    )
    assert [is_foreign(address) for address in fetched.found] == [True, False, False]


@pytest.mark.slow
def test_no_page_fetches_anything_from_elsewhere(site):
    pages, styles = sorted(site.rglob("*.html")), sorted(site.rglob("*.css"))
    assert len(pages) >= 50
    assert len(styles) >= 3
    assert [
        (page.name, address)
        for page in pages
        for address in Fetched(page.read_text("utf-8")).found
        if is_foreign(address)
    ] == []
    urls = re.compile(r"(?:url\(\s*|@import\s+)[\"']?([^\"')\s]+)")
    assert [
        (style.name, address)
        for style in styles
        for address in urls.findall(style.read_text("utf-8"))
        if is_foreign(address)
    ] == []


@pytest.mark.slow
def test_formulae_are_drawn_and_places_lead_to_the_reference(site):
    for page in PAPERS:
        html = (site / "papers" / f"{page.stem}.html").read_text("utf-8")
        assert "arithmatex" not in html
        assert html.count("<math") >= (3 if page.stem == "index" else 20)
        assert "merror" not in html
        led = re.findall(r'<a[^>]* href="\.\./reference/[^"]+#wellread\.[^"]+"', html)
        assert len(led) >= 0.9 * len(HOOKS.PLACE.findall(page.read_text("utf-8")))


@pytest.fixture(scope="module")
def address(site):
    """The site as `python -m http.server` serves it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *message):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_nothing_is_asked_of_others_and_nothing_sticks_out(browser, address, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, requested, complaints = context.new_page(), [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    for name in ("index", "papers/knowbert", "papers/kam", "reference/models", "log", "decisions/0001-names-are-keys"):
        page.goto(f"{address}/{name}.html", wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()
    assert len(requested) >= 20
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []


@pytest.mark.slow
def test_search_finds_a_page_without_a_network(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/index.html")
    page.fill("input[name=query]", "pseudo-inverse")
    page.wait_for_selector(".md-search-result__link")
    found = [link.get_attribute("href") for link in page.locator(".md-search-result__link").all()]
    assert any("papers/knowbert.html" in address for address in found)
    page.close()
