"""Templates of questions about a catalogue, and the wording of relations and kinds.

A template is a text with slots. `{subject}` and `{object}` become names of the two ends of a fact, which a linker shall
find; all other words of a template are not links. A template without either has no link.

| slot | stands for | example |
|---|---|---|
| `{subject}` `{object}` | names of a fact's two ends; `{subject}` alone may be any entity | Riga, Latvia |
| `{relation}` `{relations}` | a relation that is a noun, in the singular or plural | place of birth, films |
| `{done}` | a relation that ends in a preposition | directed by, part of |
| `{does}` | a relation that is a verb | contains |
| `{kind}` `{kinds}` | what the subject is | port city, port cities |
| `{who}` `{whose}` | "who" or "what", depending on the subject (the object) | |
| `{context}` | some words of the subject's description | largest city of Latvia |
| `{common}` | a common word that is also a name in the KB | what, film |
"""

from __future__ import annotations

import re
from functools import lru_cache

ENGLISH: tuple[str, ...] = (
    # a relation that is a noun
    "what is the {relation} of {subject}?",
    "{whose} is the {relation} of {subject}?",
    "{whose} was the {relation} of {subject}?",
    "{whose} is {subject}'s {relation}?",
    "what's {subject}'s {relation}?",
    "{subject} {relation}",
    "{subject} {relation}",
    "{relation} of {subject}",
    "{relation} {subject}",
    "{subject}'s {relation}",
    "tell me the {relation} of {subject}",
    "do you know the {relation} of {subject}?",
    "I am looking for the {relation} of {subject}",
    "can you find out {subject}'s {relation}?",
    "what {relation} does {subject} have?",
    "what {relation} is {subject}?",
    "which {relation} did {subject} have in the end?",
    "what was the {relation} for {subject}?",
    "give me the {relation} of the {kind} {subject}",
    "what {relation} goes with the {kind} {subject}?",
    "name the {relation} of {subject}.",
    "{kind} {subject} {relation}",
    "the {relation} of {subject}, the {kind}",
    # one that is a plural
    "what are the {relations} of {subject}?",
    "{whose} are {subject}'s {relations}?",
    "list all {relations} of {subject}",
    "{subject} {relations}",
    "list of {subject} {relations}",
    "which {relations} does {subject} have?",
    "which {relations} are there for {subject}?",
    "how many {relations} does {subject} have?",
    "name one of the {relations} of {subject}.",
    "{subject} best {relations}",
    # one that ends in a preposition
    "{whose} was {subject} {done}?",
    "{whose} is {subject} {done}?",
    "{subject} {done}",
    "what is {subject} {done}, and since when?",
    "which {kind} was {done} {object}?",
    "{kind} {done} {object}",
    "was {subject} {done} {object}?",
    "{subject} was {done} {object}.",
    "{subject} is {done} {object}.",
    "name something {done} {object}",
    # one that is a verb
    "what {does} {object}?",
    "which {kind} {does} {object}?",
    "{subject} {does} what?",
    "{subject} {does} {object}.",
    # from the object to the subject
    "which {kind} has {object} as its {relation}?",
    "name a {kind} whose {relation} is {object}",
    "{kind} with {object} as {relation}",
    "what are some {kinds} with the {relation} {object}?",
    "name a {object} {kind}",
    "{object} {kinds}",
    "{object} {kind}",
    "which {kinds} come under {object}?",
    "whose {relation} is {object}?",
    "{who} has {object} for {relation}?",
    "a {kind} that has to do with {object}",
    # with both ends
    "is {object} the {relation} of {subject}?",
    "is {object} {subject}'s {relation}?",
    "{object} is the {relation} of {subject}.",
    "{subject}'s {relation} is {object}.",
    "did you know that {object} is a {relation} of {subject}?",
    "{subject} {object}",
    "{subject} {relation} {object}",
    "{object} {subject}",
    "how is {subject} connected to {object}?",
    "{subject} and {object}",
    "{who} was {subject} in {object}?",
    "what has {object} to do with {subject}?",
    "are {object} and {subject} the same?",
    "I first read of {subject} in a piece about {object}.",
    # about one entity
    "{who} is {subject}?",
    "{who} was {subject}?",
    "{who} is {subject}?",
    "tell me about {subject}",
    "tell me more about the {kind} {subject}.",
    "where is {subject}?",
    "where is {subject} from?",
    "where does {subject} come from?",
    "when did {subject} begin?",
    "what year was {subject}?",
    "how old is {subject}?",
    "how much is {subject}?",
    "what does {subject} cost?",
    "what does {subject} do?",
    "what did {subject} do?",
    "what is {subject} best known for?",
    "why is {subject} important?",
    "{subject}",
    "{subject}",
    "{subject} {kind}",
    "{kind} {subject}",
    "{subject} the {kind}",
    "{subject}, the {kind}",
    "which {kind} is {subject}?",
    "what sort of {kind} is {subject}?",
    "is {subject} a {kind}?",
    "{context} {subject}",
    "{subject} {context}",
    "{subject} {context}",
    "{subject} - {context}",
    "what has {subject} to do with {context}?",
    "{who} is {subject}, {context} or something else?",
    "show me {subject}",
    "{subject} pictures",
    "{subject} for sale",
    "{subject} facts",
    "where can I find {subject}?",
    "history of {subject}",
    "meaning of {subject}",
    "my favourite {kind} is {subject}.",
    "I really like {subject}!",
    "we spoke about {subject} the other day, it was good.",
    "have you heard of {subject}?",
    "not sure, but I think {subject} is one of the best.",
    "Oh, {subject}! What a {kind}.",
    # about nothing in particular
    "what is the {relation}?",
    "what is a {kind}?",
    "which {relation} is the best?",
    "what are the {relations} like?",
    "list of {relations}",
    "{kind} near me",
    "best {kind}",
    "cheap {kinds}",
    "what a nice {kind}!",
    "the {kind} was good but the {relation} was not.",
    "do you have a {kind}?",
    "I like {kinds}, do you?",
    "is there any {common} in it?",
    "what is {common} about that?",
    "{common} or {common}, I do not mind.",
    "it is all about the {common}.",
    "{common} and {common}",
    "how {common} is it?",
    "what {common}?",
    "what time is it?",
    "thanks, that helps a lot.",
    "can you say that again?",
    "how do I get there from here?",
    "which one is better?",
    "that is what I said, I think.",
    "I have never seen one of those before.",
    "sure, it is all the same to me.",
    "why not? it could be fun!",
    "hello, how are you doing today?",
    "I don't know what you mean by that.",
    "yes, my friends told me so as well.",
)

_NUMBERED = re.compile(r"[A-Za-z]{1,2}\d+[a-z]?")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PREPOSITIONS = frozenset("by of in from for to at with on as under into about than".split())
_SAYS_NOTHING = frozenset(
    """mentions mention links link related related_to relates_to relation see_also also_see similar similar_to same_as
    pertains_to uncategorized type subclass_of instance_of is a an other others id name label property value""".split()
)
_VERBS = frozenset(
    "contains includes follows precedes causes treats owns uses produces makes employs influences supports replaces "
    "operates publishes crosses borders inhibits contraindicates shares requires belongs plays lives works".split()
)
_AGENTS = {
    "directed": "director",
    "written": "writer",
    "produced": "producer",
    "created": "creator",
    "founded": "founder",
    "designed": "designer",
    "composed": "composer",
    "edited": "editor",
    "published": "publisher",
    "owned": "owner",
    "manufactured": "manufacturer",
    "developed": "developer",
}
_NO_PLURAL = ("ss", "us", "is", "series", "species", "ics", "news")
"""Endings of words that look like plurals but are not."""


@lru_cache(1 << 12)
def in_words(relation: str) -> str | None:
    """Return the words of a relation's (or a kind's) name; None for a number without a label or an empty name.

    "/people/person/place_of_birth" -> "place of birth", "hasAuthor" -> "author", "schema:birthPlace" -> "birth place",
    "member of" -> "member of", "P19" -> None, "mentions" -> None.
    """
    name = relation.strip()
    if not any(letter.isspace() for letter in name):
        name = re.split(r"[/#.:]+", name.rstrip("/#.:"))[-1]
        if _NUMBERED.fullmatch(name):
            return None
        name = re.sub(r"_s$", "s", name)  # Freebase's "spouse_s"
        name = re.sub(r"[_\W]+\d+$", "", name)
        name = re.sub(r"[_\-]+", " ", _CAMEL.sub(" ", name))
    elif re.match(r"\w+:\w", name):
        name = name.split(":", 1)[1]
    parts = [part if part.isupper() and len(part) > 1 else part.lower() for part in name.split()]
    if len(parts) > 1 and parts[0] in ("has", "is", "have", "was"):
        parts = parts[1:]
    words = " ".join(parts)
    if (
        len(words) < 3
        or words.endswith(" related")
        or not any(letter.isalpha() for letter in words)
        or words.replace(" ", "_") in _SAYS_NOTHING
    ):
        return None
    return words


def relation_slots(words: str) -> dict[str, str]:
    """Return the slots that a relation in words can fill: "films" -> {"relations": "films", "relation": "film"}."""
    parts = words.split()
    if parts[0] in _VERBS and (len(parts) == 1 or parts[-1] in _PREPOSITIONS):
        return {"does": words}
    if len(parts) > 1 and parts[-1] in _PREPOSITIONS:
        agent = _AGENTS.get(parts[-2]) if parts[-1] == "by" else None
        return {"done": words, "relation": agent} if agent else {"done": words}
    head = next((place for place, part in enumerate(parts) if place and part in _PREPOSITIONS), len(parts)) - 1
    if parts[head] == "people" or (parts[head].endswith("s") and not parts[head].endswith(_NO_PLURAL)):
        return {"relations": words, "relation": " ".join([*parts[:head], singular(parts[head]), *parts[head + 1 :]])}
    return {"relation": words}


@lru_cache(1 << 12)
def in_singular(words: str) -> str:
    """Return a kind in the singular: "chemical elements" -> "chemical element"."""
    return relation_slots(words).get("relation", words)


def singular(noun: str) -> str:
    """Approximate the singular, for templates: "cities" -> "city", "films" -> "film"."""
    if noun == "people":
        return "person"
    if noun.endswith("ies") and len(noun) > 4:
        return noun[:-3] + "y"
    return noun[:-2] if noun.endswith(("sses", "xes", "ches", "shes")) else noun[:-1]


def plural(noun: str) -> str:
    """Approximate the plural, for templates: "port city" -> "port cities"."""
    if noun.endswith(("series", "species", "people", "ics")):
        return noun
    if noun.endswith("person"):
        return noun[:-6] + "people"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("man", "men")):
        return noun[:-2] + "en"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


_COPULA = re.compile(r"\b(?:is|was|are|were)\s+(?:an?|the|any)\s+(?=\w)")
_FIRST_SENTENCE = re.compile(r"[.;:!?](?:\s|$)")
_PHRASE_END = re.compile(
    r"[^\w\s'’-]|\d|\s(?:by|of|in|from|for|to|at|with|on|as|and|or|that|which|who|whose|where|when|used|known|best|based|"
    r"born|is|was|are|were|made|being|having|\w+ed|between|near|within)\b"
)
_OPENING = re.compile(r"\s*(?:\([^)]*\)\s*)?(?:(?:an?|the|any|one of(?: the)?|type of|kind of)\s+)*", re.IGNORECASE)


def genus(description: str) -> str | None:
    """Return the kind of thing that a description names: "Riga is a port city on the Gulf of Riga" -> "port city"."""
    first = _FIRST_SENTENCE.split(description, maxsplit=1)[0]
    copula = _COPULA.search(first)
    rest = first[copula.end() :] if copula else first
    opening = _OPENING.match(rest)
    rest = rest[opening.end() :] if opening else rest
    end = _PHRASE_END.search(rest)
    words = (rest[: end.start()] if end else rest).split()
    is_list = end is not None and end[0].strip() in (",", "and", "or")  # "a large, domesticated animal": no noun yet
    if not words or len(words) > 4 or (is_list and len(words) == 1) or words[-1].endswith(("ed", "ly")):
        return None
    phrase = " ".join(words)
    is_phrase = len(phrase) >= 3 and all(word[:1].isalpha() for word in words) and words[0] not in _PREPOSITIONS
    return phrase if is_phrase else None
