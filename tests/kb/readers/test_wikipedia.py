"""The Wikipedia reader, on small dumps in MediaWiki's own format."""

import bz2
import gzip
import lzma
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import pytest

from wellread.errors import InputError
from wellread.kb.readers.wikipedia import read_wikipedia
from wellread.kb.records import Alias, Entity, Record, Redirect, Tally

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-{version}/" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" version="{version}" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <dbname>enwiki</dbname>
    <base>https://en.wikipedia.org/wiki/Main_Page</base>
    <generator>MediaWiki 1.43.0</generator>
    <case>{case}</case>
    <namespaces>
      <namespace key="-1" case="first-letter">Special</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Talk</namespace>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
      <namespace key="100" case="first-letter">Portail</namespace>
    </namespaces>
  </siteinfo>
"""


def head(version: str = "0.11", case: str = "first-letter") -> str:
    return HEAD.format(version=version, case=case)


def page(title: str, text: str, *, ns: int = 0, redirect: str | None = None, model: str = "wikitext") -> str:
    leads = f"<redirect title={quoteattr(redirect)} />" if redirect is not None else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{ns}</ns>
    <id>10</id>
    {leads}
    <revision>
      <id>100</id>
      <parentid>99</parentid>
      <timestamp>2024-05-01T04:50:23Z</timestamp>
      <contributor><username>Ann</username><id>7</id></contributor>
      <comment>/* see [[WP:X]] */</comment>
      <origin>100</origin>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text.encode())}" sha1="abc" xml:space="preserve">{escape(text)}</text>
      <sha1>abc</sha1>
    </revision>
  </page>
"""


def dump(*pages: str, start: str | None = None) -> bytes:
    return f"{start or head()}{''.join(pages)}</mediawiki>\n".encode()


def read(folder: Path, data: bytes, **options) -> tuple[list[Record], Tally]:
    path = folder / "dump.xml"
    path.write_bytes(data)
    tally = Tally()
    return list(read_wikipedia(path, tally, **options)), tally


def aliases(records: Iterable[Record]) -> dict[tuple[str, str], float]:
    found = [record for record in records if isinstance(record, Alias)]
    assert len(found) == len({(alias.name, alias.entity) for alias in found}), "a pair came twice from one page"
    return {(alias.name, alias.entity): alias.count for alias in found}


PARIS = """{{Infobox settlement | name = Paris | country = [[France]] {{nested|{{deep|[[Europe]]}}}} }}
[[Datei:Paris.jpg|thumb|The [[Seine]] at night]]
'''Paris''' ({{IPA|paʁi}}) is the [[capital city|capital]] of [[France]].<ref>{{cite book|title=[[A Book]]}}</ref> Its
[[river]]s are the [[Seine]] and the ''[[Marne (river)|Marne]]''.

{| class="wikitable"
| [[Table City]]
|}
== History ==
The [[Parisii]] lived in [[france]] near the [[Seine#Source|Seine]]; see [[:fr:Paris]] and [[Portail:Paris|portal]].
* [[Lutetia]], the old town

An [[unsure link]] in markup {{that nothing closes.

[[Kategorie:Capitals]]
"""


def test_an_article_is_an_entity_with_its_lead_and_its_names(tmp_path):
    records, tally = read(tmp_path, dump(page("Paris (city)", PARIS)))
    assert records[0] == Entity(
        id="wp:Paris (city)",
        title="Paris (city)",
        description="Paris is the capital of France. Its rivers are the Seine and the Marne.",
        aliases={"Paris (city)": 1.0, "Paris": 1.0},
    )
    assert (tally.read, tally.skipped) == (1, {})


def test_anchors_of_prose_and_lists_are_counted_by_page_and_those_of_boxes_are_not(tmp_path):
    records, _ = read(tmp_path, dump(page("Paris", PARIS)))
    assert aliases(records) == {
        ("capital", "wp:Capital city"): 1,
        ("France", "wp:France"): 1,
        ("france", "wp:France"): 1,
        ("rivers", "wp:River"): 1,
        ("Seine", "wp:Seine"): 2,
        ("Marne", "wp:Marne (river)"): 1,
        ("Parisii", "wp:Parisii"): 1,
        ("Lutetia", "wp:Lutetia"): 1,
    }


def test_a_redirect_leads_on_and_its_title_is_a_name(tmp_path):
    records, tally = read(
        tmp_path,
        dump(
            page("City of Light", "#REDIRECT [[Paris]]", redirect="Paris"),
            page("Ville Lumière", "#REDIRECTION [[city of Light#Name]]", redirect="City of Light#Name"),
            page("AT&T Corp", "#REDIRECT [[AT&T]]", redirect="AT&T"),
        ),
    )
    assert records == [
        Redirect("wp:City of Light", "wp:Paris"),
        Alias("City of Light", "wp:Paris"),
        Redirect("wp:Ville Lumière", "wp:City of Light"),
        Alias("Ville Lumière", "wp:City of Light"),
        Redirect("wp:AT&T Corp", "wp:AT&T"),
        Alias("AT&T Corp", "wp:AT&T"),
    ]
    assert tally.read == 3


@pytest.mark.parametrize("leads", ["", "<redirect />"])
def test_dumps_from_before_redirects_had_titles_are_understood(tmp_path, leads):
    text = page("Old", "#REDIRECT: [[new page|x]]").replace("<ns>0</ns>", "").replace("<id>10</id>", leads)
    records, _ = read(tmp_path, dump(text.replace("<model>wikitext</model>", ""), start=head("0.3")))
    assert records == [Redirect("wp:Old", "wp:New page"), Alias("Old", "wp:New page")]


def test_pages_outside_the_articles_are_recognized_by_title_where_the_dump_has_no_numbers(tmp_path):
    talk, article = (page(title, "Text").replace("<ns>0</ns>", "") for title in ("Talk:Paris", "Batman: Year One"))
    records, tally = read(tmp_path, dump(talk, article, start=head("0.3")))
    assert [record.id for record in records] == ["wp:Batman: Year One"]
    assert tally.skipped == {"page outside the article namespace": 1}


@pytest.mark.parametrize(
    ("title", "mark"),
    [
        ("Mercury", "{{disambiguation|geo}}"),
        ("Mercury", "{{Disambig}}"),
        ("Mercury", "{{Human name disambiguation}}"),
        ("Mercury (Begriffsklärung)", "{{Begriffsklärung}}"),
        ("Mercury", "__DISAMBIG__"),
        ("Mercury (disambiguation)", ""),
    ],
)
def test_a_disambiguation_page_names_what_its_items_open_with(tmp_path, title, mark):
    text = f"""'''Mercury''' may refer to the [[first planet]]:
* [[Mercury (planet)]], near the [[Sun]]
* ''[[Mercury (film)|Mercury]]'', a [[film]]
** "[[Mercury (song)]]"
* A [[god]] of the [[Romans]]
* [[Mercury (planet)]], again
== See also ==
* [[Mercurial]]
{mark}"""
    records, tally = read(tmp_path, dump(page(title, text)))
    assert records == [
        Alias("Mercury", "wp:Mercury (planet)"),
        Alias("Mercury", "wp:Mercury (film)"),
        Alias("Mercury", "wp:Mercury (song)"),
    ]
    assert tally.read == 1


def test_an_article_that_asks_for_disambiguation_is_still_an_article(tmp_path):
    records, _ = read(tmp_path, dump(page("Paris", "A [[city]]{{disambiguation needed}} here. {{other uses|Paris}}")))
    assert isinstance(records[0], Entity)


def test_what_gives_no_record_is_counted_with_its_reason_and_first_place(tmp_path):
    records, tally = read(
        tmp_path,
        dump(
            page("Talk:Paris", "hello", ns=1),
            page("Template:X", "y", ns=10),
            page("Data", "{}", model="json"),
            page("Empty", " \n"),
            page("Loop", "#REDIRECT [[Loop]]", redirect="loop"),
            page("Out", "#REDIRECT [[Kategorie:X]]", redirect="Kategorie:X"),
            page("Nothing (disambiguation)", "see nothing"),
            page("Huge", "a " * 1_100_000),
            page("Unclosed", "[[a|b " * 200),
            page("Good", "Some text."),
        ),
    )
    assert [record.id for record in records] == ["wp:Good"]
    assert tally.skipped == {
        "page outside the article namespace": 2,
        "page that is not wikitext": 1,
        "page without text": 1,
        "redirect to itself": 1,
        "redirect that leads to no article": 1,
        "disambiguation page without meanings": 1,
        "page of more than 2,097,152 characters": 1,
        "page with more than 100 unclosed brackets": 1,
    }
    assert tally.first_place["page outside the article namespace"] == "Talk:Paris"


def test_of_several_revisions_the_last_one_counts(tmp_path):
    old = page("Paris", "Old text.")
    begin, end = old.index("<revision>"), old.index("</revision>") + len("</revision>")
    new = old[:end] + old[begin:end].replace("Old text.", "New text.") + old[end:]
    records, _ = read(tmp_path, dump(new))
    assert records[0].description == "New text."


def test_a_wiki_with_case_in_its_titles_keeps_it(tmp_path):
    records, _ = read(tmp_path, dump(page("x", "[[apple]]s here"), start=head(case="case-sensitive")))
    assert aliases(records) == {("apples", "wp:apple"): 1}


def test_the_lead_is_the_first_paragraph_with_words(tmp_path):
    text = ": ''For the film, see [[Film]].''\n{{Box}}\n\n—\n\n東京は日本の[[首都]]である。\n\nMore."
    records, _ = read(tmp_path, dump(page("東京", text)))
    assert records[0].description == "東京は日本の首都である。"
    assert aliases(records)["首都", "wp:首都"] == 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_dumps_of_any_compression_give_the_same_and_move_the_bar_to_its_end(tmp_path, pack):
    data = dump(page("Paris", PARIS), page("Lutetia", "#REDIRECT [[Paris]]", redirect="Paris"))
    expected, _ = read(tmp_path, data)
    packed = pack(data)
    records, tally = read(tmp_path, packed)
    assert records == expected
    assert tally.done_bytes == tally.total_bytes == len(packed)


def test_a_multistream_archive_is_read_to_its_end(tmp_path):
    data = dump(page("A", "One."), page("B", "Two."))
    records, _ = read(tmp_path, bz2.compress(data[:900]) + bz2.compress(data[900:]))
    assert [record.id for record in records] == ["wp:A", "wp:B"]


@pytest.mark.parametrize("version", ["0.3", "0.10", "0.11", "1.0"])
def test_any_version_of_the_format_is_read(tmp_path, version):
    assert len(read(tmp_path, dump(page("A", "One."), start=head(version)))[0]) == 1


@pytest.mark.parametrize(
    "opening", [b"\xef\xbb\xbf", b'<?xml version="1.0" encoding="utf-8"?>\n<!-- made by hand -->\n']
)
def test_a_declaration_or_byte_order_mark_may_come_first(tmp_path, opening):
    assert len(read(tmp_path, opening + dump(page("A", "One.")))[0]) == 1


def _cut(data: bytes) -> bytes:
    return data[: data.index(b"Gamma") + 40]


@pytest.mark.parametrize(
    "broken",
    [
        _cut,
        lambda data: bz2.compress(_cut(data)),
        lambda data: data.replace(b"<title>Gamma</title>", b"<title>Gamma</tit>"),
        lambda data: data.replace(b"<title>Gamma</title>", b"<title>&gamma;</title>"),
        lambda data: data.removesuffix(b"</mediawiki>\n"),
    ],
)
def test_a_broken_dump_gives_what_it_has_and_then_names_the_last_whole_page(tmp_path, broken):
    path = tmp_path / "dump.xml"
    path.write_bytes(broken(dump(page("Alpha", "One."), page("Beta", "Two."), page("Gamma", "Three."))))
    records = read_wikipedia(path, Tally())
    assert [next(records).title, next(records).title] == ["Alpha", "Beta"]
    with pytest.raises(InputError, match=r"dump\.xml is truncated or damaged after the page '(Beta|Gamma)'.*fetch or"):
        list(records)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_truncated_archive_names_the_last_whole_page(tmp_path, pack):
    many = [page(f"Page {number}", f"Text {number * 7919 % 1000003} [[x{number}]].") for number in range(3000)]
    packed = pack(dump(*many))
    with pytest.raises(InputError, match=r"truncated or damaged after the page 'Page \d+'"):
        read(tmp_path, packed[: len(packed) * 2 // 3])


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"<html></html>", b"\xff\xfe<\x00m\x00", b'<!DOCTYPE x [<!ENTITY a "b">]><mediawiki></mediawiki>'],
)
def test_what_is_not_a_dump_is_refused_with_what_was_expected(tmp_path, data):
    with pytest.raises(InputError, match="is not a MediaWiki dump: expected XML in UTF-8 that opens with <mediawiki"):
        read(tmp_path, data)


def test_a_page_beyond_the_limits_of_the_xml_parser_is_only_skipped(tmp_path):
    records, tally = read(tmp_path, dump(page("Huge", "word " * 2_200_000), page("Good", "Text.")))
    assert [record.id for record in records] == ["wp:Good"]
    assert tally.skipped == {"page of more than 2,097,152 characters": 1}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_pages(tmp_path):
    def peak(pages: int) -> int:
        path = tmp_path / f"{pages}.xml.gz"
        text = "'''Page''' has [[a link]] and [[other|another]]{{cite|x}}.\n\n* [[item]]\n" + "Plain words here. " * 20
        path.write_bytes(gzip.compress(dump(*(page(f"Page {number}", text) for number in range(pages)))))
        with open(tmp_path / "out.jsonl", "wb") as out:
            tracemalloc.start()
            try:
                count = sum(1 for _ in read_wikipedia(path, Tally(), paragraphs_to=out))
                assert count == 4 * pages
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    peak(50)  # what is imported and cached on the way is paid once
    assert peak(3000) < 1.2 * peak(500)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory of a process is read from /proc")
@pytest.mark.parametrize(
    ("one", "few", "many"),
    [
        (page("Template:X", "x" * 20_000, ns=10), 500, 3000),
        ("<page><title>Talk:X</title><ns>1</ns></page>", 5_000, 150_000),
    ],
)
def test_the_xml_tree_does_not_grow_either(tmp_path, one, few, many):
    """Libxml2's memory is not Python's: it is measured from outside, in a process of its own."""

    def peak_kilobytes(pages: int) -> int:
        path = tmp_path / "dump.xml"
        path.write_bytes(dump(one * pages))
        program = (
            "import sys; from wellread.kb import records; from wellread.kb.readers import wikipedia\n"
            "list(wikipedia.read_wikipedia(sys.argv[1], records.Tally()))\n"
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
        )
        run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, check=True)
        return int(run.stdout)

    assert peak_kilobytes(many) < peak_kilobytes(few) + 8_000
