"""Mentions and candidates of a batch, compared with a slow implementation."""

import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.map_data import SEEDS, SEGMENTER, byte_level, cuts_of, inputs_of, word_piece
from wellread.encoders.infusion.providers import CombinedProvider
from wellread.errors import InputError, MissingExtraError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity, Form
from wellread.kb.store import KnowledgeBase
from wellread.mentions.candidates import CandidateFinder
from wellread.models.knowbert.config import MASK_ENTITY, NO_ENTITY, CandidateConfig
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.tasks.masked_lm import hide as hide_pieces
from wellread.text.tokenization import Mark, TextTokenizer

SENSES = [
    Entity("city-n", "city", kind="n", aliases={"city": 4}),
    Entity("old-a", "old", kind="a", aliases={"old": 3}),
    Entity("old-n", "old", kind="n", aliases={"old": 1}),
    Entity("mayor-n", "mayor", kind="n", aliases={"mayor": 1}),
    Entity("york-n", "York", kind="n", aliases={"York": 1, "New York": 1}),
    Entity("york-2", "New York", kind="n", aliases={"New York": 3}),
    Entity("be-v", "be", kind="v", aliases={"be": 9}),
    Entity("buy-v", "buy", kind="v", aliases={"buy": 2}),
    Entity("buy-n", "buy", kind="n", aliases={"buy": 2}),
    Entity("known-a", "well-known", kind="a", aliases={"well-known": 1}),
    Form("is", "be", "v"),
]
NAMES = [
    Entity("Q1", "New York City", kind="place", aliases={"New York City": 5, "New York": 2}),
    Entity("Q2", "New York", kind="place", aliases={"New York": 6}),
    Entity("Q3", "東京", kind="place"),
    Entity("Q4", "U.S.", kind="place"),
    Entity("Q5", "zz", kind="thing"),
]


class Rows:
    """Rows of the entities in the order that they are given."""

    def __init__(self, ids, file="rows-1"):
        self.ids, self.file = list(ids), file

    def rows_of(self, ids):
        return np.array([self.ids.index(id) if id in self.ids else -1 for id in ids], np.int64)


@pytest.fixture(scope="module")
def kbs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offers")
    build(lambda tally: iter(SENSES), folder / "s.kb", origin=Origin("test", extra={"inflection": "wordnet"}))
    build(lambda tally: iter(NAMES), folder / "n.kb", origin=Origin("test"))
    with KnowledgeBase.open(folder / "s.kb") as senses, KnowledgeBase.open(folder / "n.kb") as names:
        yield {"senses": senses, "names": names}


ROWS = {
    "senses": Rows([one.id for one in SENSES if isinstance(one, Entity)]),
    "names": Rows([one.id for one in NAMES]),
}


@pytest.fixture(scope="module")
def provider(kbs):
    return KnowBertProvider([(name, kb, ROWS[name]) for name, kb in kbs.items()])


@pytest.fixture(scope="module")
def finders(kbs):
    return {name: CandidateFinder(kb, CandidateConfig().match_options(kb)) for name, kb in kbs.items()}


def offered(provider, text, *marks, kb="senses"):
    """(text of the mention, {row: prior}) of one text with marks (word, lemma)."""
    found = [Mark(0, text.index(word), text.index(word) + len(word), lemma, "n") for word, lemma in marks]
    one = replace(SEGMENTER.tokenize(text), marks=tuple(found))
    candidates = provider.find_candidates([one])[kb]
    return [
        (text[start:end], {row: pytest.approx(prior) for row, prior in zip(rows, priors, strict=True) if row >= 0})
        for (start, end), rows, priors in zip(
            candidates.characters.tolist(), candidates.entities.tolist(), candidates.priors.tolist(), strict=True
        )
    ]


def test_names_of_persons_places_and_groups_have_the_first_sense_of_their_class(tmp_path):
    senses = [
        Entity(f"{word}-{number}", word, kind="n", aliases={word: 9 - number})
        for word in ("person", "location", "group", "dog")
        for number in range(3)
    ]
    build(lambda tally: iter(senses), tmp_path / "s.kb", origin=Origin("test", extra={"inflection": "wordnet"}))
    build(lambda tally: iter(senses), tmp_path / "n.kb", origin=Origin("test"))
    rows = Rows([one.id for one in senses])
    every = {0: 9 / 24, 1: 8 / 24, 2: 7 / 24}
    with KnowledgeBase.open(tmp_path / "s.kb") as kb, KnowledgeBase.open(tmp_path / "n.kb") as names:
        provider = KnowBertProvider([("senses", kb, rows), ("names", names, rows)])
        text = "Arthur in Fulton of Acme , a person , persons ; Rex"
        marks = [("Arthur", "person"), ("Fulton", "location"), ("Acme", "group"), ("Rex", "dog")]
        found = dict(offered(provider, text, *marks, ("a person", "person"), ("persons", "person")))
        assert found["Arthur"] == {0: 1.0}
        assert found["Fulton"] == {3: 1.0}
        assert found["Acme"] == {6: 1.0}
        assert found["Rex"] == {9 + row: prior for row, prior in every.items()}
        assert found["persons"] == every
        assert dict(offered(provider, text, *marks, kb="names"))["Arthur"] == every  # not a KB of senses


def test_names_that_begin_or_end_with_stop_words_can_be_passed_over(tmp_path):
    pytest.importorskip("spacy")
    names = ["many", "Many", "york", "the york", "york of", "york of many york", "york's", "is"]
    titled = [Entity(f"Q{number}", name, kind="place") for number, name in enumerate(names)]
    build(lambda tally: iter(titled), tmp_path / "n.kb", origin=Origin("test"))
    rows = Rows([one.id for one in titled])
    text = "many is the york of many york ; Many york's"
    with KnowledgeBase.open(tmp_path / "n.kb") as kb:
        usual, theirs = (
            [name for name, _ in offered(KnowBertProvider([("n", kb, rows)], {"n": config}), text, kb="n")]
            for config in (CandidateConfig(), CandidateConfig(stop_words="knowbert"))
        )
    assert usual == [
        "many",
        "the york",
        "york of many york",
        "york of",
        "york",
        "many",
        "york",
        "Many",
        "york's",
        "york",
    ]
    assert theirs == ["york of many york", "york", "york", "Many", "york"]


def test_the_authors_stop_words_need_spacy(kbs, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy.lang.en.stop_words", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[spacy\]"):
        CandidateConfig(stop_words="knowbert").match_options(kbs["names"])


def listed(arrays, name="senses"):
    """Return candidates as (text, first, last, {entity: prior}, gold) with ids in place of rows."""
    ids = {NO_ENTITY: None, MASK_ENTITY: "MASK"} | dict(enumerate(ROWS[name].ids))
    columns = (arrays[part].tolist() for part in ("text_of", "spans", "entities", "priors", "gold"))
    return [
        (
            text,
            *span,
            {ids[row]: pytest.approx(prior) for row, prior in zip(rows, priors, strict=True) if row != NO_ENTITY},
            [ids[row] for row, right in zip(rows, gold, strict=True) if right],
        )
        for text, span, rows, priors, gold in zip(*columns, strict=True)
    ]


def touched(tokenized, segment, start, end):
    return np.flatnonzero(
        (tokenized.segment_of == segment) & (tokenized.spans[:, 0] < end) & (tokenized.spans[:, 1] > start)
    ).tolist()


def covered(tokenized, tokens):
    """Return the characters of tokens; a character may be several tokens, some of them truncated."""
    return {place for start, end in tokenized.spans[tokens].tolist() for place in range(start, end)}


def slowly(finder, vectors, tokenized, whole):
    """Yield the candidates of each input mention by mention; mentions with truncated tokens are left out."""
    for number, (one, uncut) in enumerate(zip(tokenized, whole, strict=True)):
        for segment, text in enumerate(one.texts):
            for mention in finder.mentions(text):
                tokens = touched(one, segment, mention.start, mention.end)
                there = touched(uncut, segment, mention.start, mention.end)
                if tokens and covered(one, tokens) == covered(uncut, there):
                    offered = {c.entity: c.prior for c in mention.candidates if c.entity in vectors.ids}
                    total = sum(offered.values())
                    if offered:
                        shares = {id: prior / total for id, prior in offered.items()}
                        yield number, tokens[0], tokens[-1], shares, []


BYTEWISE = TextTokenizer(byte_level())


@settings(max_examples=20)
@given(SEEDS)
def test_candidates_are_those_of_a_slow_implementation(finders, provider, seed):
    chance = random.Random(seed)
    tokenized = cuts_of(chance, inputs_of(chance))
    bytewise = TextTokenizer(byte_level(), longest=chance.randint(9, 40))
    tokenized += bytewise.tokenize_many(inputs_of(chance))
    whole = [(SEGMENTER if one.ids[0] == 2 else BYTEWISE).tokenize(*one.texts) for one in tokenized]
    chosen = chance.sample(range(len(tokenized)), min(len(tokenized), 6))
    tokenized, whole = [tokenized[place] for place in chosen], [whole[place] for place in chosen]
    arrays = provider.collate(tokenized, provider.prepare(tokenized))["offers"]
    assert list(arrays) == ["senses", "names"]
    for name, finder in finders.items():
        assert listed(arrays[name], name) == list(slowly(finder, ROWS[name], tokenized, whole))


def test_candidates_are_arrays_that_an_encoder_takes(provider):
    tokenized = SEGMENTER.tokenize_many([("the old new york", "buy"), ("who",), ("is New York City old",)])
    arrays = provider.collate(tokenized)["offers"]["senses"]
    assert {name: (array.dtype, array.ndim) for name, array in arrays.items()} == {
        "text_of": (np.int64, 1),
        "spans": (np.int64, 2),
        "entities": (np.int64, 2),
        "priors": (np.float32, 2),
        "gold": (np.int64, 2),
    }
    assert listed(arrays) == [
        (0, 2, 2, {"old-a": 0.75, "old-n": 0.25}, []),
        (0, 3, 4, {"york-2": 0.75, "york-n": 0.25}, []),
        (0, 4, 4, {"york-n": 1}, []),
        (0, 6, 6, {"buy-n": 0.5, "buy-v": 0.5}, []),
        (2, 1, 1, {"be-v": 1}, []),
        (2, 2, 3, {"york-2": 0.75, "york-n": 0.25}, []),
        (2, 3, 3, {"york-n": 1}, []),
        (2, 4, 4, {"city-n": 1}, []),
        (2, 5, 5, {"old-a": 0.75, "old-n": 0.25}, []),
    ]
    assert arrays["entities"].shape == arrays["priors"].shape == (9, 2)
    candidates = provider.find_candidates(tokenized)["names"]
    assert candidates.segment_of.tolist() == [0, 0, 0]
    assert candidates.characters.tolist() == [[8, 16], [3, 16], [3, 11]]


def test_without_a_mention_the_arrays_are_empty(provider):
    arrays = provider.collate(SEGMENTER.tokenize_many([("who of me",), ("",)]))["offers"]["senses"]
    assert [array.shape for array in arrays.values()] == [(0,), (0, 2), (0, 1), (0, 1), (0, 1)]
    assert provider.collate([])["offers"]["names"]["spans"].shape == (0, 2)


def test_a_combining_mark_on_the_last_letter_stays(kbs):
    segmenter = TextTokenizer(word_piece())
    provider = KnowBertProvider([("names", kbs["names"], ROWS["names"])])
    (offered,) = provider.find_candidates([segmenter.tokenize("zz\u0301")]).values()
    assert (offered.characters.tolist(), offered.spans.tolist()) == ([[0, 3]], [[1, 2]])


def test_candidates_without_a_vector_are_left_out(kbs):
    provider = KnowBertProvider([("names", kbs["names"], Rows(["Q1"]))])
    arrays = provider.collate(SEGMENTER.tokenize_many([("new york city zz 東京",)]))["offers"]["names"]
    assert arrays["entities"].tolist() == [[0], [0]]
    assert arrays["priors"].tolist() == [[1], [1]]


def test_settings_are_kept_to(kbs):
    configs = {"names": CandidateConfig(overlaps="longest", candidates=1), "senses": CandidateConfig(max_words=1)}
    provider = KnowBertProvider([(name, kb, ROWS[name]) for name, kb in kbs.items()], configs)
    arrays = provider.collate(SEGMENTER.tokenize_many([("new york city . new york",)]))["offers"]
    assert listed(arrays["names"], "names") == [(0, 1, 3, {"Q1": 1}, []), (0, 5, 6, {"Q2": 1}, [])]
    assert [row[1:3] for row in listed(arrays["senses"])] == [(2, 2), (3, 3), (6, 6)]


# marks


def marked(*marks, text="the old city buy"):
    return replace(SEGMENTER.tokenize(text), marks=marks)


def test_a_mark_has_the_candidates_of_its_lemma_and_kind_and_what_is_right(provider):
    tokenized = [
        marked(
            Mark(0, 4, 7, "old", "a", ("old-a",)),
            Mark(0, 8, 12, "new_york", "n", ("york-2", "york-n", "nobody")),
            Mark(0, 13, 16, "buy", "v", ("buy-n",)),
        )
    ]
    arrays = provider.collate(tokenized, provider.prepare(tokenized))["offers"]
    assert listed(arrays["senses"]) == [
        (0, 2, 2, {"old-a": 1}, ["old-a"]),
        (0, 3, 3, {"york-2": 0.75, "york-n": 0.25}, ["york-2", "york-n"]),
        (0, 4, 4, {"buy-v": 1}, []),
    ]
    assert listed(arrays["names"], "names") == []


def test_a_mark_without_a_lemma_is_read_as_it_stands(provider):
    tokenized = [marked(Mark(0, 0, 2, None, "v", ("be-v",)), Mark(0, 3, 11), text="is new york city")]
    assert listed(provider.collate(tokenized)["offers"]["senses"])[:3] == [
        (0, 1, 1, {"be-v": 1}, ["be-v"]),
        (0, 2, 3, {"york-2": 0.75, "york-n": 0.25}, []),
        (0, 3, 3, {"york-n": 1}, []),
    ]


def test_a_mark_of_which_nothing_is_known_is_no_mention(provider):
    tokenized = [marked(Mark(0, 4, 7, "ancient", "a"), Mark(0, 13, 16, "buy", "a"))]
    assert [row[1:3] for row in listed(provider.collate(tokenized)["offers"]["senses"])] == [(3, 3)]


def test_a_mark_of_a_kind_that_a_kb_has_not_speaks_of_another(provider):
    tokenized = [marked(Mark(0, 0, 8, "city", "n"), Mark(0, 14, 16, "zz", "thing", ("Q5",)), text="new york city zz")]
    arrays = provider.collate(tokenized)["offers"]
    assert listed(arrays["names"], "names") == [
        (0, 1, 3, {"Q1": 1}, []),
        (0, 1, 2, {"Q1": 0.25, "Q2": 0.75}, []),
        (0, 4, 5, {"Q5": 1}, ["Q5"]),
    ]
    assert listed(arrays["senses"])[0] == (0, 1, 2, {"city-n": 1}, [])


def test_truncated_marks_are_not_mentions(kbs, provider):
    tokenized = replace(
        TextTokenizer(word_piece(), longest=5).tokenize("the old city buy"),
        marks=(Mark(0, 8, 12, "city", "n", ("city-n",)), Mark(0, 13, 16, "buy", "v"), Mark(0, 8, 16, "york", "n")),
    )
    assert listed(provider.collate([tokenized])["offers"]["senses"]) == [
        (0, 2, 2, {"old-a": 0.75, "old-n": 0.25}, []),
        (0, 3, 3, {"city-n": 1}, ["city-n"]),
    ]


def test_a_mark_that_reaches_over_the_border_of_a_window_is_no_mention_there(provider):
    windows = SEGMENTER.tokenize_windows("who", "the old new york city", longest=6, stride=1)
    tokenized = [replace(one, marks=(Mark(1, 8, 16, "new york", "n", ("york-n",)),)) for one in windows]
    assert len(tokenized) == 4
    assert listed(provider.collate(tokenized)["offers"]["senses"]) == [
        (0, 4, 4, {"old-a": 0.75, "old-n": 0.25}, []),
        (1, 3, 3, {"old-a": 0.75, "old-n": 0.25}, []),
        (2, 3, 4, {"york-2": 0.75, "york-n": 0.25}, ["york-n"]),
        (2, 4, 4, {"york-n": 1}, []),
        (3, 3, 3, {"york-n": 1}, []),
        (3, 4, 4, {"city-n": 1}, []),
    ]


def test_marks_in_the_second_text_and_two_at_one_place_stand_in_their_order(provider):
    tokenized = replace(
        SEGMENTER.tokenize("old city", "new york buy"),
        marks=(Mark(1, 0, 8, "city", "n", ("city-n",)), Mark(1, 0, 8, "old", "a"), Mark(0, 0, 3, "old", "n")),
    )
    assert listed(provider.collate([tokenized, tokenized])["offers"]["senses"])[:5] == [
        (0, 1, 1, {"old-n": 1}, []),
        (0, 2, 2, {"city-n": 1}, []),
        (0, 4, 5, {"city-n": 1}, ["city-n"]),
        (0, 4, 5, {"old-a": 1}, []),
        (0, 5, 5, {"york-n": 1}, []),
    ]


def test_marks_can_be_passed_over(kbs):
    provider = KnowBertProvider([("senses", kbs["senses"], ROWS["senses"])], {"senses": CandidateConfig(marks=False)})
    tokenized = [marked(Mark(0, 4, 7, "ancient", "a"))]
    assert [row[1:3] for row in listed(provider.collate(tokenized)["offers"]["senses"])] == [(2, 2), (3, 3), (4, 4)]


# masked words


def hide(tokenized, *hidden):
    words = tuple("" if place in hidden else word for place, word in enumerate(tokenized.words))
    return replace(tokenized, words=words, word_of=np.where(np.isin(tokenized.word_of, hidden), -1, tokenized.word_of))


def test_a_mention_with_a_masked_word_has_only_the_mask_entity(provider):
    mask = {"MASK": 1}
    tokenized = [
        hide(marked(Mark(0, 4, 7, "old", "a", ("old-a",))), 1),
        hide(SEGMENTER.tokenize("old city", "buy new york city"), 4, 0),
    ]
    arrays = provider.collate(tokenized, provider.prepare(tokenized))["offers"]
    assert listed(arrays["senses"]) == [
        (0, 2, 2, mask, []),
        (0, 3, 3, {"city-n": 1}, []),
        (0, 4, 4, {"buy-n": 0.5, "buy-v": 0.5}, []),
        (1, 1, 1, mask, []),
        (1, 2, 2, {"city-n": 1}, []),
        (1, 4, 4, {"buy-n": 0.5, "buy-v": 0.5}, []),
        (1, 5, 6, mask, []),
        (1, 6, 6, mask, []),
        (1, 7, 7, {"city-n": 1}, []),
    ]
    assert listed(arrays["names"], "names") == [(1, 5, 7, mask, []), (1, 5, 6, mask, [])]


@pytest.mark.parametrize("segmenter", [SEGMENTER, TextTokenizer(byte_level())], ids=["words", "bytes"])
def test_a_name_whose_joiner_is_masked_has_only_the_mask_entity(provider, segmenter):
    one = segmenter.tokenize("old well-known u.s. city")
    (joiner,) = [place for place, (start, end) in enumerate(one.spans.tolist()) if one.texts[0][start:end] == "-"]
    assert one.word_of[joiner] == -1
    arrays = provider.collate([hide_pieces(one, one.ids, np.array([joiner]))])["offers"]
    offered = {name: [row[3] for row in listed(arrays[name], name)] for name in arrays}
    assert offered["senses"] == [{"old-a": 0.75, "old-n": 0.25}, {"MASK": 1}, {"city-n": 1}]
    assert offered["names"] == [{"Q4": 1}]
    both = np.array([joiner, int(np.flatnonzero(one.word_of == 0)[0])])
    arrays = provider.collate([hide_pieces(one, one.ids, np.sort(both))] * 2)["offers"]
    masked = [row[3] == {"MASK": 1} for row in listed(arrays["senses"])]
    assert masked == [True, True, False] * 2


def test_candidates_of_a_masked_joiner_are_drawn_as_those_of_masked_words(provider):
    one = SEGMENTER.tokenize("well-known")
    joiner = np.flatnonzero((one.word_of < 0) & (one.segment_of >= 0))
    arrays = provider.collate([hide_pieces(one, one.ids, joiner)] * 2000, draw=np.random.default_rng(3))["offers"][
        "senses"
    ]
    assert (arrays["entities"][:, 0] == MASK_ENTITY).mean() == pytest.approx(0.8, abs=0.03)


def test_a_draw_lets_some_stay_and_gives_some_the_candidates_of_another(provider):
    tokenized = [hide(marked(Mark(0, 4, 7, "old", "a", ("old-a",))), 1)] * 4000
    notes = provider.prepare(tokenized)
    arrays = provider.collate(tokenized, notes, draw=np.random.default_rng(1))["offers"]["senses"]
    hidden = arrays["spans"][:, 0] == 2
    rows, gold = arrays["entities"][hidden], arrays["gold"][hidden]
    own = ROWS["senses"].ids.index("old-a")
    masked, stays = rows[:, 0] == MASK_ENTITY, gold[:, 0] == 1
    assert masked.mean() == pytest.approx(0.8, abs=0.02)
    assert stays.mean() == pytest.approx(0.1, abs=0.02)
    assert set(rows[stays, 0].tolist()) == {own}
    others = rows[~masked & ~stays]
    assert len(np.unique(others[:, 0])) > 2
    assert not gold[~stays].any()
    assert np.allclose(arrays["priors"].sum(1), 1)
    again = provider.collate(tokenized, notes, draw=np.random.default_rng(1))["offers"]["senses"]
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


def test_all_mentions_with_a_masked_word_are_treated_alike(provider):
    tokenized = [hide(SEGMENTER.tokenize("new york city"), 1)] * 300
    arrays = provider.collate(tokenized, draw=np.random.default_rng(2))["offers"]
    fates = {}
    for name in arrays:
        for text, first, last, offered, _ in listed(arrays[name], name):
            if first <= 2 <= last:
                fates.setdefault(text, set()).add("MASK" in offered)
    assert {tuple(some) for some in fates.values()} == {(True,), (False,)}


# what is kept


def test_mentions_are_found_once_and_mapped(kbs, tmp_path, monkeypatch):
    parts = [(name, kb, ROWS[name]) for name, kb in kbs.items()]
    tokenized = [marked(Mark(0, 4, 7, "old", "a", ("old-a",))), SEGMENTER.tokenize("new york", "old mayor")]
    arrays = KnowBertProvider(parts).collate(tokenized)["offers"]
    KnowBertProvider(parts).prepare(tokenized, cache=tmp_path / "notes")
    assert len(list((tmp_path / "notes").glob("offers-*.safetensors"))) == 2
    again = KnowBertProvider(parts)
    monkeypatch.setattr(CandidateFinder, "find", None)
    kept = again.collate(tokenized, again.prepare(tokenized, cache=tmp_path / "notes"))["offers"]
    for name in arrays:
        assert listed(kept[name], name) == listed(arrays[name], name)


def test_another_state_of_kb_vectors_or_settings_is_found_anew(tmp_path):
    build(lambda tally: iter(NAMES), tmp_path / "n.kb", origin=Origin("test"))
    tokenized = [SEGMENTER.tokenize("new york city zz")]
    with KnowledgeBase.open(tmp_path / "n.kb", writable=True) as kb:

        def files(file="rows-1", **settings):
            KnowBertProvider([("names", kb, Rows(["Q1"], file))], {"names": CandidateConfig(**settings)}).prepare(
                tokenized, cache=tmp_path
            )
            return len(list(tmp_path.glob("offers-*.safetensors")))

        assert [files(), files(), files("rows-2"), files(overlaps="longest")] == [1, 1, 2, 3]
        kb.add(Entity("Q9", "old"))
        assert files() == 4


def test_a_provider_follows_its_kb(tmp_path):
    build(lambda tally: iter(NAMES), tmp_path / "n.kb", origin=Origin("test"))
    with KnowledgeBase.open(tmp_path / "n.kb", writable=True) as kb:
        provider = KnowBertProvider([("names", kb, Rows(["Q1", "Q9"]))])
        tokenized = [SEGMENTER.tokenize("old zz")]
        assert not len(provider.collate(tokenized)["offers"]["names"]["spans"])
        kb.add(Entity("Q9", "old"))
        assert provider.collate(tokenized)["offers"]["names"]["entities"].tolist() == [[1]]


def test_a_damaged_file_says_what_to_do(kbs, tmp_path):
    provider = KnowBertProvider([("names", kbs["names"], ROWS["names"])])
    tokenized = [SEGMENTER.tokenize("new york city zz")]
    provider.prepare(tokenized, cache=tmp_path)
    (file,) = tmp_path.glob("offers-*.safetensors")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match="delete it, and it is made again"):
        provider.prepare(tokenized, cache=tmp_path)


def test_what_was_not_annotated_is_refused(provider):
    notes = provider.prepare([SEGMENTER.tokenize("old")])
    with pytest.raises(InputError, match="'new' was not annotated"):
        provider.collate([SEGMENTER.tokenize("new")], notes)
    with pytest.raises(InputError, match="mark 'buy' was not annotated"):
        provider.collate([replace(SEGMENTER.tokenize("old"), marks=(Mark(0, 0, 3, "buy"),))], notes)


def test_settings_that_cannot_be_are_refused(kbs):
    with pytest.raises(UsageError, match="candidates = 0"):
        CandidateConfig(candidates=0)
    with pytest.raises(UsageError, match="one name"):
        KnowBertProvider([("a", kbs["names"], ROWS["names"])] * 2)
    with pytest.raises(UsageError, match="settings for b"):
        KnowBertProvider([("a", kbs["names"], ROWS["names"])], {"b": CandidateConfig()})


def test_a_provider_combines_with_others(provider):
    tokenized = SEGMENTER.tokenize_many([("old",)])
    both = CombinedProvider([provider])
    assert list(both.collate(tokenized, both.prepare(tokenized))["offers"]) == ["senses", "names"]
