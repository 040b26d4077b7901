"""Maps against loops written from the paper."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.map_data import (
    SEEDS,
    SEGMENTER,
    GivenMarks,
    assert_provided,
    cuts_of,
    inputs_of,
    overlap,
    spans_of,
    table_of,
)
from wellread.document import Document, Link
from wellread.errors import InputError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.mentions.annotation_cache import annotate
from wellread.mentions.annotators import Marks, StanzaAnnotator
from wellread.models.kam.inputs import (
    CorrelationMap,
    EntityMap,
    FunctionMap,
    GraphMap,
    KamProvider,
    Links,
    PhraseMap,
    TermChoice,
)
from wellread.text import words as names

# entities


@settings(max_examples=25)
@given(seed=SEEDS)
def test_words_of_one_mention_are_relevant_to_each_other(seed):
    chance = random.Random(seed)
    inputs = inputs_of(chance)
    marks = {text: Marks(mentions=spans_of(text, chance)) for texts in inputs for text in texts}
    marks = {text: Marks(mentions=each.mentions, names=("x",) * len(each.mentions)) for text, each in marks.items()}

    def relevance(tokenized, i, j):
        if tokenized.word_segment[i] != tokenized.word_segment[j]:
            return 0
        text = tokenized.texts[tokenized.word_segment[i]]
        return any(
            overlap(mention, tokenized.word_spans[i]) > 0 and overlap(mention, tokenized.word_spans[j]) > 0
            for mention in marks[text].mentions.tolist()
        )

    assert_provided(KamProvider([EntityMap(GivenMarks(marks))], SEGMENTER), cuts_of(chance, inputs), relevance)


def test_a_word_outside_of_mentions_is_not_even_relevant_to_itself():
    marks = Marks(mentions=np.array([[4, 12], [8, 16]], np.int32), names=("a", "b"))
    provider = KamProvider([EntityMap(GivenMarks({"is new york city": marks}))], SEGMENTER)
    (drawn,) = provider.build_inputs([SEGMENTER.tokenize("is new york city")]).maps[0]
    # [CLS] is new york city [SEP]; "new york" and "york city" share a word, yet new and city are in no common mention
    assert drawn.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]


# phrases


class Tree:
    """A constituency tree with the methods of Stanza's; a leaf is a tree without children."""

    def __init__(self, children=()):
        self.children = children
        self.up = None
        for child in children:
            child.up = self

    def is_leaf(self):
        return not self.children

    def is_preterminal(self):
        return len(self.children) == 1 and self.children[0].is_leaf()

    def level(self):
        return 0 if self.is_preterminal() else 1 + max(child.level() for child in self.children)

    def preterminals(self):
        return [self] if self.is_preterminal() else [leaf for child in self.children for leaf in child.preterminals()]


def grow(chance, words):
    """A tree over so many words, with chains of single children here and there."""
    if words == 1:
        tree = Tree([Tree()])
    else:
        cuts = sorted(chance.sample(range(1, words), chance.randint(1, min(3, words - 1))))
        tree = Tree([grow(chance, end - start) for start, end in zip([0, *cuts], [*cuts, words], strict=True)])
    return Tree([tree]) if chance.random() < 0.2 else tree


def leaves_of(text, chance):
    """A parser's words: now and then one for two of ours, and sometimes none."""
    found = names.split(text)
    spans, place = [], 0
    while place < len(found.starts):
        last = min(place + chance.choice([0, 0, 0, 1]), len(found.starts) - 1)
        if chance.random() < 0.95:
            spans.append((int(found.starts[place]), int(found.ends[last])))
        place = last + 1
    return spans


def own_leaf(leaves, span):
    """The parser's word that a word overlaps most, the first of equals; None for none."""
    shared = [overlap(leaf, span) for leaf in leaves]
    most = max(shared, default=0)
    return shared.index(most) if most > 0 else None


def same_phrase(parsed, phrase_of):
    """The relevance of two words by their phrases; a word without a leaf is a phrase by itself."""

    def relevance(tokenized, i, j):
        if tokenized.word_segment[i] != tokenized.word_segment[j]:
            return 0
        leaves, tree = parsed[tokenized.texts[tokenized.word_segment[i]]]
        one, other = (own_leaf(leaves, tokenized.word_spans[word].tolist()) for word in (i, j))
        if one is None or other is None:
            return i == j
        return phrase_of(tree, one) == phrase_of(tree, other)

    return relevance


@settings(max_examples=20)
@given(seed=SEEDS, level=st.sampled_from([0, 1, 2, 5]))
def test_a_phrase_is_the_highest_constituent_of_at_most_the_level(seed, level):
    chance = random.Random(seed)
    inputs = inputs_of(chance)
    parsed = {}
    for text in {text for texts in inputs for text in texts}:
        leaves = leaves_of(text, chance)
        parsed[text] = leaves, grow(chance, len(leaves)) if leaves else None

    def phrase_of(tree, leaf):
        node = tree.preterminals()[leaf]
        while node.up is not None and node.up.level() <= level:
            node = node.up
        return id(node)

    def mark(text):
        """As Stanza would, with a sentence for the text."""
        leaves, tree = parsed[text]
        words = [SimpleNamespace(start_char=start, end_char=end) for start, end in leaves]
        annotator = StanzaAnnotator.__new__(StanzaAnnotator)
        annotator.what = "phrases"
        sentences = [SimpleNamespace(words=words, constituency=tree)] if leaves else []
        annotator.pipeline = lambda text: SimpleNamespace(sentences=sentences)
        return next(annotator.mark([text]))

    provider = KamProvider([PhraseMap(GivenMarks(mark), reading="constituency", level=level)], SEGMENTER)
    if any(marks.values.size for marks in [annotate(parsed, provider.sources).marks("given", "constituents")]):
        assert_provided(provider, cuts_of(chance, inputs), same_phrase(parsed, phrase_of))


@settings(max_examples=20)
@given(seed=SEEDS, level=st.sampled_from([0, 1, 2, 5]))
def test_a_phrase_is_where_the_walk_up_the_heads_ends(seed, level):
    chance = random.Random(seed)
    inputs = inputs_of(chance)
    parsed = {}
    for text in {text for texts in inputs for text in texts}:
        leaves = leaves_of(text, chance)
        order = chance.sample(range(len(leaves)), len(leaves))  # the first are roots, another hangs on an earlier one
        heads = {leaf: chance.choice([leaf, *order[:place]][-1:] + order[:place]) for place, leaf in enumerate(order)}
        parsed[text] = leaves, [heads[leaf] for leaf in range(len(leaves))]

    def height(heads, leaf):
        below = [child for child, head in enumerate(heads) if head == leaf and child != leaf]
        return 1 + max(height(heads, child) for child in below) if below else 0

    def phrase_of(heads, leaf):
        while heads[leaf] != leaf and height(heads, heads[leaf]) <= level:
            leaf = heads[leaf]
        return leaf

    marks = {
        text: Marks(leaves=np.array(leaves, np.int32).reshape(-1, 2), heads=np.array(heads, np.int32).reshape(-1, 1))
        for text, (leaves, heads) in parsed.items()
    }
    provider = KamProvider([PhraseMap(GivenMarks(marks), reading="dependency", level=level)], SEGMENTER)
    assert_provided(provider, cuts_of(chance, inputs), same_phrase(parsed, phrase_of))


@settings(max_examples=15)
@given(seed=SEEDS)
def test_words_of_one_noun_chunk_are_a_phrase_and_others_are_alone(seed):
    chance = random.Random(seed)
    inputs = inputs_of(chance)
    chunks = {}
    for text in {text for texts in inputs for text in texts}:
        borders = sorted(chance.sample(range(len(text) + 1), min(len(text) + 1, 2 * chance.randint(0, 3)) // 2 * 2))
        chunks[text] = [(start, end) for start, end in zip(borders[::2], borders[1::2], strict=True)]
    marks = {text: Marks(chunks=np.array(spans, np.int32).reshape(-1, 2)) for text, spans in chunks.items()}
    parsed = {text: (spans, None) for text, spans in chunks.items()}
    provider = KamProvider([PhraseMap(GivenMarks(marks))], SEGMENTER)
    assert_provided(provider, cuts_of(chance, inputs), same_phrase(parsed, lambda _, chunk: chunk))


def test_a_parser_without_trees_is_not_a_text_without_phrases():
    source = GivenMarks({"old york": Marks(leaves=np.array([[0, 3], [4, 8]], np.int32))})
    for reading, needed in (("chunks", "dependency"), ("dependency", "dependency"), ("constituency", "constituency")):
        with pytest.raises(InputError, match=f"no {needed} trees.*choose another reading"):
            KamProvider([PhraseMap(source, reading=reading)], SEGMENTER).build_inputs([SEGMENTER.tokenize("old york")])


# graph


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "graph.kb"
    facts = {"a": ["b", "c"], "b": [], "c": ["d"], "d": ["d"]}
    entities = [
        Entity(id, id, facts=tuple((relation, other) for other in others for relation in ("likes", "knows")))
        for id, others in facts.items()
    ]
    build(lambda tally: iter(entities), path, origin=Origin("test"))
    with KnowledgeBase.open(path) as opened:
        yield opened


@settings(max_examples=25)
@given(seed=SEEDS)
def test_words_of_connected_entities_are_relevant(kb, seed):
    chance = random.Random(seed)
    inputs = inputs_of(chance)
    facts = {("a", "b"), ("a", "c"), ("c", "d"), ("d", "d")}
    documents = {}
    for text in {text for texts in inputs for text in texts}:
        links = [
            (*span, chance.choice(["a", "b", "c", "d", "unknown", None])) for span in spans_of(text, chance).tolist()
        ]
        documents[text] = Document(
            text, tuple(Link(start, end, text[start:end], entity) for start, end, entity in links)
        )

    def entities(tokenized, word):
        links = documents[tokenized.texts[tokenized.word_segment[word]]].links
        return {link.entity for link in links if overlap((link.start, link.end), tokenized.word_spans[word]) > 0}

    def relevance(tokenized, i, j):
        pairs = [(one, other) for one in entities(tokenized, i) for other in entities(tokenized, j)]
        return any((one, other) in facts or (other, one) in facts for one, other in pairs)

    source = Links(lambda texts: [documents[text] for text in texts], fingerprint="test")
    assert_provided(KamProvider([GraphMap(kb, source)], SEGMENTER), cuts_of(chance, inputs), relevance)


# a user's own


def test_a_function_says_how_relevant_words_are():
    def same_first_letter(tokenized):
        return [
            [one[0] == other[0] and i != j for j, other in enumerate(tokenized.words)]
            for i, one in enumerate(tokenized.words)
        ]

    tokenized = SEGMENTER.tokenize_many([("old city of", "oz"), ("",), ("mayor me",)])
    assert_provided(
        KamProvider([FunctionMap(same_first_letter)], SEGMENTER),
        tokenized,
        lambda one, i, j: one.words[i][0] == one.words[j][0] and i != j,
    )


def test_a_function_with_a_source_gets_its_annotations():
    def linked(tokenized, documents):
        assert [document.text for document in documents] == list(tokenized.texts)
        found = [{link.entity for link in document.links} for document in documents]
        return np.full((len(tokenized.words),) * 2, len(found[0] & found[1]) / 2)

    given_links = [
        Document("old york", (Link(0, 3, "old", "a"), Link(4, 8, "york", "b"))),
        Document("the city", (Link(0, 3, "the", None), Link(4, 8, "city", "b"))),
    ]
    provider = KamProvider([FunctionMap(linked, Links.given(given_links))], SEGMENTER)
    provided = provider.build_inputs([SEGMENTER.tokenize("old york", "the city")])
    assert provided.maps[0, 0, 1, 1:].tolist() == [0.5, 0.5, 0, 0.5, 0.5, 0]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[0.0]], "returned 1 × 1 for 2 words; expected a score from 0 to 1 for each pair of words"),
        (0.5, "returned a single number for 2 words"),
        ("much", "did not return a matrix"),
        ([[0, 2], [0, 0]], "returned scores from 0 to 2.*divide by the largest"),
        ([[0, -1], [0, 0]], "returned scores from -1 to 0"),
        ([[0, float("nan")], [0, 0]], "returned scores from nan to nan"),
    ],
)
def test_invalid_scores_of_a_function_are_refused_with_the_expected_form(scores, message):
    provider = KamProvider([FunctionMap(lambda tokenized: scores, name="mine")], SEGMENTER)
    with pytest.raises(InputError, match=f"the map 'mine' {message}"):
        provider.build_inputs([SEGMENTER.tokenize("old york")])


# together


def test_the_maps_of_a_text_do_not_depend_on_its_batch():
    table = table_of(random.Random(3))
    source = GivenMarks(
        lambda text: Marks(mentions=(span := np.array([[0, len(text) // 2]], np.int32)), names=("x",), chunks=span)
    )
    provider = KamProvider(
        [EntityMap(source), PhraseMap(source), CorrelationMap(table)], SEGMENTER, terms=TermChoice(table)
    )
    tokenized = SEGMENTER.tokenize_many(
        [("the mayor of york",), ("who is old", "the city of new york is near the mayor"), ("",)]
    )
    together = provider.build_inputs(tokenized)
    for number, one in enumerate(tokenized):
        alone = provider.build_inputs([one])
        total = alone.maps.shape[-1]
        np.testing.assert_array_equal(together.maps[number, :, :total, :total], alone.maps[0])
        assert together.terms[number] == alone.terms[0]
    assert provider.build_inputs([]).maps.shape == (0, 3, 0, 0)


def test_two_maps_or_sources_of_one_name_are_refused():
    with pytest.raises(UsageError, match="two maps have the same name"):
        KamProvider([FunctionMap(lambda tokenized: 0), FunctionMap(lambda tokenized: 1)], SEGMENTER)
    with pytest.raises(UsageError, match="two sources are named 'given'"):
        KamProvider([EntityMap(GivenMarks({})), EntityMap(GivenMarks({}), name="other")], SEGMENTER)


def test_the_two_maps_of_a_tagger_share_it():
    provider = KamProvider([EntityMap("spacy"), PhraseMap()], SEGMENTER)
    assert [source.name for source in provider.sources] == ["spacy"]
