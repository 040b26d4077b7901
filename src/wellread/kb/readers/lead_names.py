"""Names of an article in its lead: the subject of the first sentence and the lists after "also known as".

    "The United States of America (USA), also known as the United States (U.S.) or America, is …"
        -> United States of America, USA, United States, U.S., America
    "Mercury is a chemical element; … It is commonly known as quicksilver."  -> Mercury, quicksilver

Only the head of the first sentence (before its verb) and short sentences "It is also known as …" are read. What
follows "known as" later in a lead mostly names another entity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from wellread.kb.readers.title_names import Article, Name, Source

_ADVERB = (
    r"(?:also|commonly|often|better|best|formally|officially|sometimes|usually|generally|originally|previously|"
    r"formerly|simply|popularly|widely|professionally|informally|colloquially|mononymously|posthumously|historically|"
    r"alternatively|alternately|frequently|traditionally|variously|occasionally|more|most|collectively|less|just|now|"
    r"internationally|locally|initially|later|either|anciently|scientifically|today|typically|then)"
)
_VERB = (
    r"(?:known|called|named|nicknamed|abbreviated|shortened|spelled|spelt|stylized|stylised|styled|referred to|"
    r"romanized|romanised|rendered|transliterated|written(?= as)|titled|termed|dubbed|contracted|clipped)"
)
_BY_NAME = (
    r"by (?:his|her|its|their|the) (?:(?:pen|stage|birth|regnal|former|full|given|original|religious|ring|English|"
    r"Latin|Latinized|Latinised|French|common|courtesy|art|dharma|temple|posthumous|native|trade) ?)?"
    r"(?:name|nickname|pseudonym|initials?|acronym|initialism|exonym|epithet|abbreviation|moniker|title|mononym)s?"
)
_WHERE = r"(?:(?:in|to|outside|within) (?:[A-Za-z-]+ ){1,4}?(?=as ))?"
_CUE = re.compile(
    rf"(?:,\s*|\s+|^)(?:(?:and|or|but) )?(?:"
    rf"(?:{_ADVERB},? )*{_VERB} (?:{_ADVERB} )*(?:{_BY_NAME}(?: of| as)? |{_WHERE}(?:{_ADVERB} )*(?:as |to ))?"
    rf"|(?:(?:or|also|and) )?(?:officially|formally|formerly|simply|originally|short for|née|i\.e\.|more commonly|"
    rf"abbr\.|alias|birth name|personal name) (?!(?:as|in|from|a|an|on|at) )"
    rf"|(?:(?:or|also|and) )?(?:{_ADVERB} )+as (?:the |an? )?"
    rf"|born (?!in |into |on |to |as |with |from |at |and |around |c\. |about )"
    rf"|also |or )"
)
_COPULA = re.compile(
    r"\s(?:is|was|are|were|refers?|has|have|had|comprises?|consists?|became|ruled|began|begins|took|takes?|can|may|occurs?|occurred|"
    r"means|describes?|includes?|belongs?|served|reigned|lived|encompasses|involves|denotes|constitutes?|developed|"
    r"covers?|existed|flourished|represents?|forms?|seeks|tells|deals|concerns|came|lasted|lies|uses?|contains?|"
    r"studies|measures|states|will|must|should|during)\s"
)
_OPENING = re.compile(
    r"^(?:In|At|Within|On|For|From|Under|According to|Among) [^,]{1,80}, (?=(?:an?|the)\b|[a-zA-Z]+ )"
)
_ARTICLE = re.compile(r"^(?:an?|the|The|A|An|also|simply|or|as|and|either|his|her|its|just) ")
_TAIL = re.compile(
    r"\s(?:in|from|by|for|since|at|during|until|after|to|among|on|within|when|which|who|that|because|due|outside|"
    r"before|between|with|throughout|elsewhere|under|meaning|used|especially|particularly|depending)\s.*$"
)
_ACRONYM = re.compile(r"^(?:[A-Z]\.){2,5}$|^[A-Z][A-Za-z&]{0,5}[A-Z0-9]s?$|^[A-Z]\.? ?[A-Z]\.?$")
_SENTENCE = re.compile(r"(?<=[a-z0-9)\]”\"'])[.;](?:\s|$)")
_LATER = re.compile(
    rf"(?:^|[.;] )(?:It|He|She|They|This \w+|These \w+|The \w+) (?:is|are|was|were) (?:{_ADVERB} )*"
    rf"(?:known|called|referred to|nicknamed|abbreviated)(?: {_ADVERB})*(?: as| by)? ([^.;]{{2,80}})"
)
_ALTERNATIVE = re.compile(r"^(?:or|also|or simply|also spelled|also known as|also called|sometimes) (\w[\w' -]{2,40})$")
_BAD_START = re.compile(
    r"^(?:one|by|in|of|his|her|its|their|who|which|that|this|after|from|since|at|with|to|for|on|when|whose|as|an?|son|"
    r"both|such|not|then|until|any|part|some|other|various|several|because|especially|usually|often|also|meaning|"
    r"literally|lit|formerly|and|or|if|it|he|she|they|there|these|where|are|is|was|term|reported|known|called|kunya|"
    r"mostly|mainly|whence|hence|thus|through|including|like|only|under|name|named|said|so|but|less|more|most|very|variety|"
    r"depending|word|broadly|\d+ days)\b",
    re.IGNORECASE,
)
_LANGUAGES = frozenset("English French Latin Greek German Spanish Italian Arabic Chinese Hebrew Dutch Russian".split())
_BAD_END = re.compile(r"\b(?:of|the|and|or|in|a|an|to|for|by|with|as|de|is|was|from|on|at|his|her)$", re.IGNORECASE)
_BAD_INSIDE = re.compile(
    r"\band [IVX]+$|[:;/=\[\]<>…]|\bof (?:an?|any|one)\b|\b(?:usually|often|derivative|married|term|refers)\b"
)
_TITLES = re.compile(r"^(?:Sir|Dame|Dr\.?|Saint|St\.|Don|Dom|Lord|Count|Baron|General|Field Marshal|Generalissimo) ")
_HONOURS = re.compile(r"(?: (?![IVX]+$)[A-Z]{2,5})+$")
_MOST_WORDS, _MOST_CHARS = 6, 48


def lead_names(article: Article) -> Iterator[Name]:
    """Yield the names in a lead, the title included; a name may come more than once."""
    start = _clean(article.lead[:700])
    first = _SENTENCE.split(_OPENING.sub("", start), maxsplit=1)[0]
    found = _COPULA.search(_mask_parentheses(first))
    head = first[: found.start()] if found else ""
    outside, inside = _split_parentheses(head)
    for before, text in inside:
        yield from ((name, Source.LEAD) for name in _in_parentheses(before, text))
    for name, source in _listed(outside, article.base):
        if article.is_person and " " not in name and re.search(rf"\bthe [\"“]?{re.escape(name)}\b", outside):
            continue  # an epithet: "the Blessed"
        plain = _HONOURS.sub("", name) if article.is_person else name
        yield plain, source
        if article.is_person and _TITLES.match(plain):
            yield _TITLES.sub("", plain), source
    for later in _LATER.finditer(start[:600]):
        if not re.match(r"(?:the )?(?:one|an?|for|most|source|first|only|main|largest)\b", later[1]):
            yield from ((name, Source.LEAD) for name in _later(later[1]))


def _clean(text: str) -> str:
    text = re.sub(r"\s+", " ", text.replace("\u200b", "").replace("\xa0", " ").replace("\u2009", " "))
    return re.sub(r"\s+([,;])", r"\1", text)


def _mask_parentheses(text: str) -> str:
    """Replace parentheses by as many dots, so that a verb inside them is not found."""
    return re.sub(r"\([^()]*\)", lambda found: "." * len(found[0]), text)


def _split_parentheses(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text without parentheses, and each parenthesis with the text before it."""
    inside = [(text[: found.start()].strip(), found[1]) for found in re.finditer(r"\(([^()]*)\)", text)]
    return re.sub(r"\s*\([^()]*\)", "", text).replace("( ", "").replace(" ,", ","), inside


def _in_parentheses(before: str, text: str) -> Iterator[str]:
    """Yield acronyms of the words before, and other spellings: "(USA)", "(or colour in British English)"."""
    for part in re.split(r"[,;] | or ", text):
        if _ACRONYM.match(part) and _abbreviates(part, before):
            yield part
            if "." in part:
                yield part.replace(".", "")
    if other := _ALTERNATIVE.match(text):
        name = _TAIL.sub("", other[1])
        if is_plausible(name):
            yield name


def _abbreviates(acronym: str, before: str) -> bool:
    """True where the letters are initials of the words before them, in order: "UNESCO", "NYC"."""
    letters = [letter for letter in acronym.lower() if letter.isalpha()]
    if letters[-1:] == ["s"] and acronym.endswith("s"):
        letters.pop()
    words = re.findall(r"[^\W\d_]+", before.lower())[-len(letters) - 4 :]
    initials = "".join(word[0] for word in words)
    place = initials.rfind(letters[0]) if letters else -1
    while place >= 0:
        rest = iter("".join(words[place:]))
        if all(letter in rest for letter in letters):
            return sum(letter in initials[place:] for letter in letters) * 2 > len(letters)
        place = initials.rfind(letters[0], 0, place)
    return False


def _listed(head: str, title: str) -> Iterator[Name]:
    """Yield the subject and the lists after cues; appositions ("the myrtle family") are skipped."""
    cues = [*_CUE.finditer(head)]
    borders = [(0, 0, "")] + [(cue.start(), cue.end(), cue[0]) for cue in cues] + [(len(head), len(head), "")]
    for (_, begin, cue), (end, _, _) in pairwise(borders):
        items = re.split(r", (?:and |or )?", head[begin:end].strip(" ,"))
        for place, item in enumerate(items):
            if not cue.strip() and place:
                break  # an apposition to the subject
            if place and not _goes_on(item):
                break
            for name in _parts(item, title, listed=bool(cue.strip())):
                name = _tidy(name, title)
                source = Source.LEAD if cue.strip() else Source.SUBJECT
                if is_plausible(name) and (source == Source.LEAD or name[0].isupper() or _alike(name, title)):
                    yield name, source


def _alike(name: str, title: str) -> bool:
    """True where a name shares a word with the title, but for its ending: "proteins" and "Protein"."""
    starts = {word[:4] for word in title.lower().split()}
    return any(word[:4] in starts for word in name.lower().split() if word not in ("of", "the"))


def _goes_on(item: str) -> bool:
    """True where a list of names goes on after a comma."""
    return not _BAD_START.match(item) and len(item.split()) <= 4 and not re.match(r"(?:the|an?) [a-z]", item)


def _parts(item: str, title: str, *, listed: bool) -> list[str]:
    """Split two names joined by "and": "known as Bertolt Brecht and Bert Brecht"; but not "Antigua and Barbuda"."""
    left, joined, right = item.partition(" and ")
    if not joined or " and " in title:
        return [item]
    both_proper = listed and left[:1].isupper() and right[:1].isupper()
    both_alike = len(left.split()) < 4 and set(left.split()) & set(right.split()) - {"the", "of"}
    if both_proper or both_alike:
        return [left, right]
    return [] if listed else [item]


def _later(text: str) -> Iterator[str]:
    """Yield the names of a sentence "It is also known as …"."""
    for item in re.split(r", (?:and |or )?| or ", re.sub(r"\s*\([^()]*\)", "", text)):
        quoted = re.match(r"^(?:the )?[\"“]([^\"”]+)[\"”]", item)
        name = _tidy(quoted[1] if quoted else item)
        proper = name[:1].isupper() or (quoted is None and " " not in name and "the " not in item)
        if not proper or not is_plausible(name) or re.match(r"(?:an?|his|her|their|its|for|in|by) ", item):
            break
        yield name


def _tidy(name: str, title: str = "\n") -> str:
    """Strip articles, quotation marks and text after the name: "the hockey in North America" -> "hockey"."""
    name = re.sub(r"[\"“”„«»]", "", name).strip(" ,.:-–—'’" if not re.search(r"[A-Z]\.$", name) else " ,:-–—'’")
    while article := _ARTICLE.match(name):
        name = name[article.end() :]
    return name if name.endswith(title) else _TAIL.sub("", name).strip(" ,:-–—")


def is_plausible(name: str) -> bool:
    """True for a text with the form of a name: short, without a dangling word, not a phrase about an entity."""
    count = len(name.split())
    fits = 2 <= len(name) <= _MOST_CHARS and count <= _MOST_WORDS and any(letter.isalpha() for letter in name)
    return (
        fits
        and not (_BAD_START.match(name) or _BAD_END.search(name) or _BAD_INSIDE.search(name))
        and name not in _LANGUAGES
    )
