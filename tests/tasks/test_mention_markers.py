"""Markers around mentions: among the pieces, not in the text, so that nothing that is known of the text is moved."""

import numpy as np
import pytest
import torch

from tests.task_models import SEGMENTER, TOKENIZER, provider
from wellread.document import Document, Link
from wellread.errors import InputError, UsageError
from wellread.mentions.annotation_cache import Links
from wellread.models.kam.inputs import EntityMap, KamProvider
from wellread.tasks.mention_markers import Marker, MarkerHead, marked_places
from wellread.tasks.task import make_batch
from wellread.text.positions import TokenPositions
from wellread.text.tokenization import TextTokenizer

TEXT = "the mayor of Avon was born in old Brno near the river"
AVON, BRNO, OLD_BRNO = (13, 17), (34, 38), (30, 38)
MARKER = Marker(TOKENIZER, (":", "-"), mentions=2)


def tokens(one):
    return " ".join(TOKENIZER.id_to_token(id) for id in one.ids)


def tokenize(text, *mentions, longest=48, other=()):
    ((one,),) = MARKER.tokenize(TextTokenizer(TOKENIZER, longest=longest), [((text, *other), mentions)])
    return one


def test_markers_stand_around_mentions_and_their_places_are_known():
    one = tokenize(TEXT, AVON, BRNO)
    assert tokens(one) == "[CLS] the mayor of : avon : was born in old - brno - near the river [SEP]"
    assert one.places.tolist() == [4, 11]
    back = tokenize(TEXT, BRNO, AVON)
    assert tokens(back) == "[CLS] the mayor of - avon - was born in old : brno : near the river [SEP]"
    assert back.places.tolist() == [11, 4]


def test_the_text_its_words_and_their_pieces_stay_what_they_are():
    plain, one = SEGMENTER.tokenize(TEXT), tokenize(TEXT, AVON, BRNO)
    assert (one.texts, one.words, one.first_words) == (plain.texts, plain.words, plain.first_words)
    assert one.word_spans.tolist() == plain.word_spans.tolist()
    own = np.flatnonzero(one.segment_of == 0)
    before = np.flatnonzero(plain.segment_of == 0)
    for part in ("ids", "types", "spans", "word_of"):
        assert getattr(one, part)[own].tolist() == getattr(plain, part)[before].tolist()
    markers = np.setdiff1d(np.arange(1, len(one) - 1), own)
    assert markers.tolist() == [4, 6, 11, 13]
    assert one.special_mask[markers].all()
    assert (one.word_of[markers] == -1).all()
    assert not one.spans[markers].any()
    assert [TEXT[start:end] for start, end in one.spans[own].tolist()] == TEXT.split()


def test_knowledge_of_words_is_provided_to_the_same_tokens():
    plain, one = SEGMENTER.tokenize(TEXT), tokenize(TEXT, AVON, BRNO)
    maps = provider().build_inputs([plain]).maps[0, 0], provider().build_inputs([one]).maps[0, 0]
    own = np.append(np.insert(np.flatnonzero(one.segment_of == 0), 0, 0), len(one) - 1)
    assert np.array_equal(maps[1][np.ix_(own, own)], maps[0])
    assert maps[0].any()
    assert not maps[1][one.places].any()


def test_mentions_of_a_knowledge_base_are_found_at_their_own_pieces():
    one = tokenize(TEXT, AVON, BRNO)
    spans = np.array([AVON, OLD_BRNO, (39, 53)])
    found, whole = TokenPositions.of([one]).tokens(np.zeros(3, np.int64), spans[:, 0], spans[:, 1])
    said = [tokens(one).split()[first : last + 1] for first, last in found.tolist()]
    # A marker may lie within a mention that it does not enclose.
    assert said == [["avon"], ["old", "-", "brno"], ["near", "the", "river"]]
    assert whole.all()


@pytest.mark.parametrize(
    ("mentions", "expected"),
    [
        pytest.param((OLD_BRNO, BRNO), "in : old - brno - : near", id="an inner mention ends first"),
        pytest.param((BRNO, OLD_BRNO), "in - old : brno : - near", id="an outer mention begins first"),
        pytest.param(((30, 33), BRNO), "in : old : - brno - near", id="one ends before the next begins"),
        pytest.param((BRNO, (30, 33)), "in - old - : brno : near", id="in any order"),
        pytest.param(((31, 32), (31, 36)), "in - : old : brno - near", id="parts of a piece take all of it"),
        pytest.param(((33, 34), BRNO), "in old : : - brno - near", id="a blank has markers and nothing between"),
    ],
)
def test_markers_nest(mentions, expected):
    assert f"born {expected} the" in tokens(tokenize(TEXT, *mentions))


def test_a_second_segment_has_no_markers():
    one = tokenize("Avon of Brno", (0, 4), (8, 12), other=("Avon , a city",))
    assert tokens(one) == "[CLS] : avon : of - brno - [SEP] avon , a city [SEP]"
    assert one.types.tolist() == [0] * 9 + [1] * 5
    assert one.word_segment.tolist() == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("longest", [7, 10, 13, 16, 20, 48])
def test_what_is_too_long_is_cut_around_the_mentions(longest):
    text = "who was born near the old river of the new city in Avon of Brno near me where the river is old"
    start = text.index("Avon")
    one = tokenize(text, (start, start + 4), (start + 8, start + 12), longest=longest)
    assert len(one) <= longest
    said = tokens(one)
    assert said.startswith("[CLS]")
    assert said.endswith("[SEP]")
    assert ": avon" in said
    assert ("- brno -" in said) is (longest > 8)
    assert [TOKENIZER.id_to_token(one.ids[place]) for place in one.places] == [":", "-"]
    # Words are those of the pieces, numbered as in the whole text.
    own = np.flatnonzero(one.segment_of == 0)
    assert set(one.word_of[own].tolist()) == set(range(len(one.words)))
    assert one.words == tuple(text.split())[one.first_words[0] :][: len(one.words)]
    for place in own:
        assert text[slice(*one.spans[place])] == one.words[one.word_of[place]]
        assert one.spans[place].tolist() == one.word_spans[one.word_of[place]].tolist()


FAR = f"who wrote Avon {'near the old river ' * 20}Brno in Cork"
FIRST, SECOND = (10, 14), (FAR.index("Brno"), FAR.index("Brno") + 4)


def test_where_mentions_are_too_far_apart_both_stay_with_what_is_nearest_to_them(capsys):
    one = tokenize(FAR, FIRST, SECOND, longest=16, other=("a city",))
    assert tokens(one) == "[CLS] who wrote : avon : near river - brno - in [SEP] a city [SEP]"
    back = tokenize(FAR, SECOND, FIRST, longest=16, other=("a city",))
    assert tokens(back) == "[CLS] who wrote - avon - near river : brno : in [SEP] a city [SEP]"
    tight = tokenize(FAR, FIRST, SECOND, longest=11, other=("a city",))
    assert tokens(tight) == "[CLS] : avon : - brno - [SEP] a city [SEP]"
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="no room for text"):
        tokenize(FAR, FIRST, SECOND, longest=7, other=("a city in Avon",))


@pytest.mark.parametrize("longest", range(8, 100, 7))
def test_two_mentions_that_fit_are_whole_however_far_apart(longest, capsys):
    text = f"of fargo {FAR} , where the new city is"
    for first, second in (((3, 8), (3, 8)), ((3, 8), (3, 23)), ((19, 23), (len(text) - 2, len(text)))):
        one = tokenize(text, first, second, longest=longest)
        assert len(one) <= longest
        for place, end, mention in zip(one.places, one.ends, (first, second), strict=True):
            inner = [span for span in one.spans[place + 1 : end].tolist() if span != [0, 0]]
            if longest > 9:
                assert (inner[0][0], inner[-1][1]) == mention
    assert ("do not fit" in capsys.readouterr().err) is (longest < 10)


def test_words_left_out_of_the_middle_are_none_of_the_inputs_and_the_others_keep_their_numbers():
    whole, one = (
        tokenize(FAR, FIRST, SECOND, longest=None),
        tokenize(FAR, FIRST, SECOND, longest=16, other=("a city",)),
    )
    assert one.words == ("who", "wrote", "Avon", "near", "river", "Brno", "in", "a", "city")
    own = np.flatnonzero(one.segment_of == 0)
    assert [FAR[slice(*span)] for span in one.spans[own].tolist()] == [one.words[word] for word in one.word_of[own]]
    (hole,) = one.omitted
    assert (FAR[: hole.start], FAR[hole.end :]) == ("who wrote Avon near", "river Brno in Cork")
    assert (hole.place, hole.words) == (4, len(whole.words) - 7 - 1)
    assert not whole.omitted


def test_a_mention_with_a_hole_in_it_is_not_whole():
    one = tokenize(FAR, FIRST, SECOND, longest=14)
    assert tokens(one) == "[CLS] who wrote : avon : near the river - brno - in [SEP]"
    spans = np.array([(4, 14), FIRST, (15, 23), (15, 27), (40, 50), (10, SECOND[1]), SECOND, (SECOND[0], len(FAR))])
    found, whole = TokenPositions.of([one]).tokens(np.zeros(len(spans), np.int64), spans[:, 0], spans[:, 1])
    assert whole.tolist() == [True, True, True, False, False, False, True, False]
    said = [tokens(one).split()[first : last + 1] for first, last in found[whole].tolist()]
    assert said == [["wrote", ":", "avon"], ["avon"], ["near", "the"], ["brno"]]


def test_knowledge_of_words_is_provided_on_both_sides_of_a_hole():
    spans = [(4, 14), (40, 50), (SECOND[0] - 6, SECOND[1])]
    given = Links.given([Document(FAR, tuple(Link(*span, FAR[slice(*span)], "Q1") for span in spans))])
    one, whole = tokenize(FAR, FIRST, SECOND, longest=14), tokenize(FAR, FIRST, SECOND, longest=None)
    provided = KamProvider([EntityMap(given)], SEGMENTER)
    ours, theirs = (provided.build_inputs([some]).maps[0, 0] for some in (one, whole))
    own = np.flatnonzero(one.segment_of == 0)
    same = (whole.spans[None] == one.spans[own, None]).all(2) & (whole.segment_of == 0)
    at = same.argmax(1)
    assert same.any(1).all()
    assert np.array_equal(ours[np.ix_(own, own)], theirs[np.ix_(at, at)])
    assert ours.sum() == 8  # two names of two words


@pytest.mark.parametrize("apart", [0, 30])
def test_mentions_that_do_not_fit_are_counted_and_their_beginnings_stay(apart, capsys):
    text = f"who {'old ' * 9}Avon {'near ' * apart}the new river"
    inputs = [((text,), ((4, 44), (len(text) - 13, len(text)))), (("old Avon near Brno",), ((0, 8), (14, 18)))]
    (one,), (other,) = MARKER.tokenize(TextTokenizer(TOKENIZER, longest=12), inputs)
    assert tokens(one) == "[CLS] : old old old : - the new river - [SEP]"
    assert tokens(other) == "[CLS] : old avon : near - brno - [SEP]"
    assert capsys.readouterr().err == (
        "1 of 2 texts have mentions that do not fit into inputs of 12 tokens and are truncated; raise encoder.longest\n"
    )


def test_before_and_behind_may_be_marked_differently():
    marker = Marker(TOKENIZER, ("?", "!"), mentions=1)
    ((one,),) = marker.tokenize(SEGMENTER, [((TEXT,), (AVON,))])
    assert "of ? avon ! was" in tokens(one)


def test_markers_and_mentions_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="no token '@' for markers"):
        Marker(TOKENIZER, ("@", "#"), mentions=2)
    with pytest.raises(UsageError, match="expected 2, on both sides of a mention, or 4"):
        Marker(TOKENIZER, (":",), mentions=2)
    for mention in ((-1, 2), (3, 3), (50, 99)):
        with pytest.raises(InputError, match="expected spans in characters"):
            tokenize(TEXT, AVON, mention)


def test_places_count_through_the_batch():
    inputs = MARKER.tokenize(SEGMENTER, [((TEXT,), (AVON, BRNO)), (("Brno of Avon",), ((8, 12), (0, 4)))])
    batch = make_batch([None, None], inputs, {})
    places = marked_places(batch)
    assert [TOKENIZER.id_to_token(id) for id in batch.ids[places].flatten()] == [":", "-", ":", "-"]
    assert places.tolist() == [[4, 11], [18 + 5, 18 + 1]]


@pytest.mark.parametrize("training", [True, False])
def test_the_head_reads_both_mentions_in_their_order(training):
    torch.manual_seed(0)
    head = MarkerHead(6, 2, 3, dropout=0.0).double().train(training)
    states = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    found = head(states)
    for row in range(4):
        naive = [
            sum(head.out.weight[label, 6 * side + at] * states[row, side, at] for side in (0, 1) for at in range(6))
            for label in range(3)
        ]
        assert torch.allclose(found[row], torch.stack(naive))
    found[1].sum().backward()
    assert states.grad[1].abs().min() > 0
    assert not states.grad[[0, 2, 3]].any()
