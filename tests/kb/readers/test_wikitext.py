"""Wikitext as a reader sees it: what is shown, what is linked, and where exactly."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellread.errors import InputError
from wellread.kb.readers import wikitext
from wellread.kb.readers.wikitext import Site, bare_title, read_blocks


def read(text: str, site: Site | None = None) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(kind, text, [(anchor, target)]) of each block."""
    return [
        (block.kind, block.text, [(block.text[link.start : link.end], link.target) for link in block.links])
        for block in read_blocks(text, site or Site())
    ]


def shown(text: str) -> str:
    return "¶".join(block.text for block in read_blocks(text, Site()))


@pytest.mark.parametrize(
    ("written", "anchor", "target"),
    [
        ("[[Paris]]", "Paris", "Paris"),
        ("[[paris]]", "paris", "Paris"),
        ("[[Paris|the city]]", "the city", "Paris"),
        ("[[apple]]s", "apples", "Apple"),
        ("[[apple|Apple]]s", "Apples", "Apple"),
        ("[[Bus]]у", "Busу", "Bus"),
        ("[[Eiffel_Tower]]", "Eiffel Tower", "Eiffel Tower"),
        ("[[Eiffel_Tower#History|its past]]", "its past", "Eiffel Tower"),
        ("[[Paris#History]]", "Paris", "Paris"),
        ("[[ Paris  (Texas) | there ]]", "there", "Paris (Texas)"),
        ("[[Boston (band)|]]", "Boston", "Boston (band)"),
        ("[[Paris|''Paris'' ]]", "Paris", "Paris"),
        ("'''[[Paris]]'''", "Paris", "Paris"),
        ("[[AT&amp;T|AT&amp;T]]", "AT&T", "AT&T"),
        ("[[Caf%C3%A9]]", "Caf%C3%A9", "Café"),
        ("[[:Paris]]", "Paris", "Paris"),
        ("[[Batman: Year One]]", "Batman: Year One", "Batman: Year One"),
        ("[[CSI: Miami]]", "CSI: Miami", "CSI: Miami"),
        ("[[oz: a tale]]", "oz: a tale", "Oz: a tale"),
        ("[[東京都|東京]]", "東京", "東京都"),
        ("[[東京]]に", "東京", "東京"),
        ("[[ßeta]]", "ßeta", "ßeta"),
        ("[[საქართველო]]", "საქართველო", "საქართველო"),
    ],
)
def test_a_link_has_the_anchor_that_is_shown_and_the_title_it_leads_to(written, anchor, target):
    [(kind, text, links)] = read(f"We saw {written} today.")
    assert (kind, links) == ("prose", [(anchor, target)])
    assert text.startswith(f"We saw {anchor}")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("[[File:Eiffel.jpg|thumb|The [[tower]] at [[night]]]]", ""),
        ("[[Image:Eiffel.jpg]]", ""),
        ("[[Category:Towers]]", ""),
        ("[[fr:Tour Eiffel]]", ""),
        ("[[zh-min-nan:Paris]]", ""),
        ("[[:Category:Towers|towers]]", "towers"),
        ("[[wikt:tower|tower]]", "tower"),
        ("[[:fr:Tour Eiffel|la tour]]", "la tour"),
        ("[[User talk:Ann|Ann]]", "Ann"),
        ("[[#History|below]]", "below"),
        ("[[{{PAGENAME}}|here]]", "here"),
        ("[http://example.org the site]", "the site"),
        ("[http://example.org]", ""),
    ],
)
def test_what_leads_to_no_article_is_plain_text_or_nothing(written, text):
    assert read(f"See {written} now") == [("prose", " ".join(f"See {text} now".split()), [])]


def test_the_namespaces_of_the_wiki_itself_are_known():
    site = Site(hidden=Site().hidden | {"datei"}, namespaces=Site().namespaces | {"benutzer"})
    assert read("Das [[Datei:Turm.jpg|mini|Der [[Turm]]]] sieht [[Benutzer:Ann|Ann]].", site) == [
        ("prose", "Das sieht Ann.", [])
    ]


def test_titles_keep_their_case_where_the_wiki_says_so():
    assert read("[[apple]] and [[Apple]]", Site(first_letter=False))[0][2] == [("apple", "apple"), ("Apple", "Apple")]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a<ref>Smith, [[Cite]] {{cite|x}}</ref> b<ref name=x /> c", "a b c"),
        ("a <!-- [[hidden]] \n\n == x == --> b", "a b"),
        ("a <!-- never closed [[x]]", "a"),
        ("a {{outer|{{inner|[[x]]}}|y={{z}}}} b", "a b"),
        ("a {{#if: x | [[y]] }} b", "a b"),
        ("a <math>x < [[y]]</math> b", "a b"),
        ("<gallery>\nA.jpg|[[x]]\n</gallery>a", "a"),
        ("a <span style='color:red'>b</span><br/>c H<sub>2</sub>O", "a b c H2O"),
        ("a &amp; b&nbsp;c &eacute; &#8212; &lt;", "a & b c é — <"),
        ("<nowiki>'''a''' {x}</nowiki>", "a {x}"),
        ("tags like <nowiki><b></nowiki> and 3 < 4", "tags like <b> and 3 < 4"),
        ("'''bold''' ''italic'' '''''both'''''", "bold italic both"),
        ("l'''île'' et l''''eau'''", "l'île et l'eau"),
        ("mot'''x l'''île''' y''z", "motx l'île yz"),
        ("Ann's ''own''", "Ann's own"),
        ("Paris ({{IPA|x}}; {{IPA|y}}) is", "Paris is"),
        ("Paris ({{IPA|x}}; 1900 – 1950{{efn|z}}) is", "Paris (1900 – 1950) is"),
        ("東京（{{lang-en|Tokyo}}）は", "東京は"),
        ("f() and g(x)", "f() and g(x)"),
        ("{{lang|fr|''mot'' juste}} {{nowrap|5 km}} {{transl|ru|ISO|da}} {{nowrap|1=x}}", "mot juste 5 km da x"),
        ("1900{{snd}}1950", "1900 – 1950"),
        ("__NOTOC__a", "a"),
        ("a\nb\n\nc\n----\nd\n== H ==\ne", "a b¶c¶d¶e"),
        ("a\n{| class=x\n| [[t]]\n{| \n| nested\n|}\n|}\nb", "a¶b"),
        ("a <table><tr><td>[[t]]</td></tr></table> b", "a¶b"),
        ("a\n<div>b</div>\nc", "a¶b¶c"),
    ],
)
def test_only_what_a_reader_reads_is_shown(written, text):
    assert shown(written) == text
    assert not any(links for _, _, links in read(written))


def test_links_inside_kept_templates_and_around_dropped_ones_have_their_place():
    text = "The {{lang|fr|[[Mot (film)|mot]]}} of {{citation|x}} ''[[Paris]]''<ref>y</ref> {{nowrap|[[Lyon|L ]]}}."
    [(_, plain, links)] = read(text)
    assert plain == "The mot of Paris L."
    assert links == [("mot", "Mot (film)"), ("Paris", "Paris"), ("L", "Lyon")]


def test_list_items_are_blocks_of_their_own_and_know_their_heading():
    blocks = list(
        read_blocks("Lead\n* [[A]] one\n** [[B]]\n: c\n# d\n; term : [[E]]\nprose\n== See ''also'' ==\n* f", Site())
    )
    assert [(block.kind, block.text) for block in blocks] == [
        ("prose", "Lead"),
        ("item", "A one"),
        ("item", "B"),
        ("item", "c"),
        ("item", "d"),
        ("item", "term E"),
        ("prose", "prose"),
        ("item", "f"),
    ]
    assert [block.heading for block in blocks] == [""] * 7 + ["See ''also''"]


@pytest.mark.parametrize("written", ["a {{b|c", "a [[b|c", "x]] a", "{| class=x\n| a", "| a\n|}"])
def test_a_block_with_markup_that_nothing_closes_is_broken_and_the_next_section_is_not(written):
    assert [kind for kind, _, _ in read(f"{written}\n\n== Next ==\n\nfine [[text]]")] == ["broken", "prose"]


def test_an_unclosed_reference_does_not_swallow_the_page():
    assert shown("a<ref>b\n\n[[c]]<ref>d</ref> e") == "ab¶c e"


@pytest.mark.parametrize("markup", ["[[a|", "{{a|b=", "{|\n|-\n", "[http://a "])
def test_a_page_of_unclosed_brackets_is_refused_before_the_parser_sees_it(markup):
    begin = time.monotonic()
    with pytest.raises(InputError, match="more than 100 unclosed brackets"):
        list(read_blocks(markup * 20_000, Site()))
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("markup", ["<ref>", "<div>", "<math>x", "<nowiki>", "<foo ", "<!--", " ,", "(;", "'''a "])
def test_a_page_of_unclosed_tags_or_loose_signs_is_read_in_good_time(markup):
    begin = time.monotonic()
    list(read_blocks(markup * 5_000, Site()))
    assert time.monotonic() - begin < 10


def test_a_page_beyond_mediawikis_limit_is_refused():
    with pytest.raises(InputError, match="more than 2,097,152 characters"):
        list(read_blocks("a" * (wikitext.MAX_CHARS + 1), Site()))


def test_whatever_the_parser_raises_is_a_reason_to_skip_the_page(monkeypatch):
    def fail(*_, **__):
        raise RecursionError

    monkeypatch.setattr(wikitext.mwparserfromhell, "parse", fail)
    with pytest.raises(InputError, match="the wikitext parser cannot read"):
        list(read_blocks("a", Site()))


@pytest.mark.parametrize(
    ("title", "bare"),
    [
        ("Mercury (planet)", "Mercury"),
        ("Paris, Texas", "Paris, Texas"),
        ("(What's) New", "(What's) New"),
        ("東京（曖昧さ回避）", "東京"),
        ("(Remixes)", "(Remixes)"),
    ],
)
def test_a_bare_title_has_no_parenthesis_at_its_end(title, bare):
    assert bare_title(title) == bare


SIGNS = (
    "[[ ]] {{ }} | '' ''' \n \n\n == <ref> </ref> <!-- --> {| |} |- * # : ; &nbsp; &#xD800; &#0; <br> <nowiki> "
    "</nowiki> <div> </div> [http://x ] File: Category: fr: wikt: ( ) , . _ #s %20 %ff <table> </table> ---- <li> "
    "{{nowrap| {{lang|x| '"
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from([*SIGNS.split(" "), " ", "a", "B c", "東京", "e\u0301", "😀", "\xa0"]), max_size=40))
def test_no_soup_of_markup_breaks_the_walk_and_every_link_stands_on_its_own_text(signs):
    for block in read_blocks("".join(signs), Site()):
        block.text.encode()
        assert block.text == " ".join(block.text.split())
        ends = 0
        for link in block.links:
            assert ends <= link.start < link.end <= len(block.text)
            anchor = block.text[link.start : link.end]
            assert anchor == anchor.strip()
            ends = link.end
