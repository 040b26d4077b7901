"""A knowledge layer as a linker: it says what the encoder says, of any text, from small files, while the KB changes."""

import json
import shutil
import time
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.infused_models import shake
from tests.sense_data import Hashing
from tests.toy_models import write_kb
from wellread import Linker
from wellread.encoders.files import load_tokenizer
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing
from wellread.errors import AssetError, InputError, MissingExtraError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.decoding import Decoding
from wellread.models import folder as packaged
from wellread.models.knowbert import linker as knowbert
from wellread.models.knowbert.config import KnowBertConfig
from wellread.models.knowbert.entity_tables import EntityTable
from wellread.models.knowbert.folder import LinkerSettings
from wellread.models.knowbert.inputs import KnowBertProvider
from wellread.models.knowbert.linker import KnowBertBackend
from wellread.models.knowbert.loading import SavedLayer, load_parts
from wellread.models.knowbert.pos_tags import PosTags
from wellread.models.knowbert.quantization import Int8EntityTable
from wellread.models.knowbert.saving import save_linker, shrink
from wellread.models.knowbert.torch_linker import TorchLayer
from wellread.text.tokenization import TextTokenizer

SENSES = [
    Entity("money", "bank", "of money", "n", 1, {"bank": 5}),
    Entity("shore", "bank", "of a river", "n", 1, {"bank": 2, "river bank": 3}),
    Entity("tilt", "bank", "to tilt", "v", 1, {"bank": 1}),
    Entity("water", "river", "water that flows", "n", 1, {"river": 4}),
    Entity("aged", "old", "long lived", "a", 1, {"old": 9}),
    Entity("past", "old", "of the past", "a", 1, {"old": 1}),
    Entity("run", "run", "to move fast", "v", 1, {"run": 3}),
]
TEXT = "the old bank near the river bank. who is to run the old river? Run to the bank."


def layer(**options):
    sizes = {"layer": 0, "raw": 6, "dim": 8, "heads": 2, "inner": 12, "prior_width": 5}
    return KnowBertConfig(**{"kb": "senses", **sizes, **options})


def write_model(folder, encoder, *layers, seed=3):
    """An infused encoder that knows its layers' entities by heart, as a folder."""
    model = infuse(load_encoder(encoder), list(layers)).eval()
    torch.manual_seed(seed)
    for part in model.infusions:
        shake(part, 0.6)
    model.save_pretrained(folder)
    load_tokenizer(encoder).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory, encoder):
    """A folder with `senses.kb`, its vectors, and `model`."""
    folder = tmp_path_factory.mktemp("senses")
    with write_kb(folder / "senses.kb", SENSES) as kb:
        EntityVectors.build(kb, Hashing())
    write_model(folder / "model", encoder, layer())
    return folder


@pytest.fixture
def own(home, tmp_path):
    """A copy of it that may be changed."""
    shutil.copytree(home, tmp_path / "own")
    return tmp_path / "own"


def load(home, model="model", **options):
    return Linker.load(home / "senses.kb", home / model, precision="fp32", **options)


def links(document):
    return [(link.start, link.end, link.entity) for link in document.links]


def psi(home, text, folder="model", kb="senses"):
    """Return the links of a text by the infused encoder itself: {(start, end): {entity: probability}}."""
    model = load_encoder(str(home / folder)).eval()
    tokenized = [TextTokenizer(load_tokenizer(str(home / folder))).tokenize(text)]
    parts = []
    for part in model.infusions:
        opened = KnowledgeBase.open(home / f"{part.config.kb}.kb")
        vectors = EntityVectors.open(home / f"{part.config.kb}.kb.vectors")
        part.take(EntityTable.of(vectors))
        parts.append((part.config.kb, opened, vectors))
    candidates = KnowBertProvider(parts).find_candidates(tokenized)
    arrays = {
        name: {key: torch.from_numpy(part) for key, part in some.as_arrays().items()}
        for name, some in candidates.items()
    }
    with torch.no_grad():
        read = model.read(torch.from_numpy(tokenized[0].ids), Packing.of([len(tokenized[0])]), None, offers=arrays)
    vectors, ours = {name: vectors for name, _, vectors in parts}[kb], candidates[kb]
    chances = torch.softmax(read.outputs["links"][kb], 1).numpy()
    return {
        tuple(span): {
            vectors.ids.take([row])[0]: chance
            for row, chance in zip(rows.tolist(), some.tolist(), strict=True)
            if row >= 0
        }
        for span, rows, some in zip(ours.characters.tolist(), ours.entities, chances, strict=True)
    }


def chances(scored):
    names = scored.name_rows
    return {
        tuple(span): {
            names([row])[0][0]: np.exp(log_p)
            for row, log_p in zip(rows.tolist(), log_ps.tolist(), strict=True)
            if row >= 0
        }
        for span, rows, log_ps in zip(scored.spans.tolist(), scored.rows, scored.entity_log_p, strict=True)
    }


def assert_same(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for span, ours in found.items():
        assert ours == pytest.approx(expected[span], abs=tolerance)


def test_it_says_what_the_encoder_says(home):
    text = "the old bank near the river bank"
    with load(home) as linker:
        scored = linker.score(text)
        assert_same(chances(scored), psi(home, text))
        document = scored.document()
    assert [(link.text, link.kb) for link in document.links] == [(w, "senses") for w in ("old", "bank", "river bank")]
    for link in document.links:
        best = max(psi(home, text)[link.start, link.end].items(), key=lambda entry: entry[1])
        assert (link.entity, link.score) == (best[0], pytest.approx(best[1], abs=1e-5))
        assert [candidate.score for candidate in link.candidates] == sorted(
            (candidate.score for candidate in link.candidates), reverse=True
        )
    assert document.meta == {"kb": "senses", "model": "knowbert"}
    bank = document.links[1]
    assert {(one.entity, one.title, round(one.prior, 3)) for one in bank.candidates} == {
        ("money", "bank", 0.625),
        ("shore", "bank", 0.25),
        ("tilt", "bank", 0.125),
    }


@pytest.mark.parametrize("folder", ["deep", "small"])
def test_it_reads_as_many_layers_as_the_encoder_s_own(own, encoder, folder):
    text = "the old bank near the river bank"
    write_model(own / "deep", encoder, layer(layer=1, reads=2))
    with KnowledgeBase.open(own / "senses.kb") as kb:
        shrink(own / "deep", kb, own / "small", base=encoder, rank=2)
    expected = psi(own, text, "deep")
    with load(own, folder) as linker:
        assert_same(chances(linker.score(text)), expected, tolerance=1e-5 if folder == "deep" else 0.02)
    write_model(own / "shallow", encoder, layer(layer=1))
    with pytest.raises(AssertionError):
        assert_same(expected, psi(own, text, "shallow"), tolerance=0.001)


def test_of_overlapping_names_the_longest_is_linked_unless_all_are_kept(home):
    text = "the river bank"
    with load(home) as linker:
        assert [link.text for link in linker.link(text).links] == ["river bank"]
        kept = linker.score(text).document(overlaps="keep")
    assert sorted(link.text for link in kept.links) == ["bank", "river", "river bank"]


def test_weak_links_are_left_out_and_the_threshold_needs_no_second_run(home):
    with load(home, threshold=0.999) as linker:
        strict = linker.score(TEXT)
        assert {link.score > 0.999 for link in strict.document().links} == {True}
        assert len(strict.document().links) < len(strict.document(threshold=0.0).links) == 8


def test_a_text_is_read_sentence_by_sentence_as_in_training(home):
    first = TEXT.index("Run")
    with load(home) as linker:
        whole, (head, tail) = linker.link(TEXT), linker.link_many([TEXT[:first], TEXT[first:]])
    shifted = [(start + first, end + first, entity) for start, end, entity in links(tail)]
    assert links(whole) == links(head) + shifted
    assert [link.score for link in whole.links] == pytest.approx(
        [link.score for one in (head, tail) for link in one.links]
    )


def test_a_long_text_loses_no_mention_and_has_none_twice(own):
    text = " ".join(["the old bank near the river bank who is to run"] * 40)
    settings = LinkerSettings(kb="senses", sentences=0, width=40)
    saved = {"format": "wellread knowbert linker 1", "kb": "senses", "sentences": 0, "width": 40}
    (own / "model" / "linker.json").write_text(json.dumps(saved))
    with load(own) as linker:
        assert linker.backend.settings == settings
        found = linker.link(text)
        assert next(map(len, linker.backend.window_tokenizer.tokenize([text]))) > 20
    assert [link.text for link in found.links] == ["old", "bank", "river bank", "run"] * 40


def test_texts_do_not_depend_on_their_neighbours(home):
    texts = [TEXT, "", "nothing here is known", "the bank", TEXT * 3]
    with load(home) as linker:
        together = list(linker.link_many(texts))
        assert [links(one) for one in together] == [links(linker.link(text)) for text in texts]
    assert [len(one.links) for one in together] == [8, 0, 0, 1, 24]


def test_8_bits_say_nearly_the_same(home):
    with Linker.load(home / "senses.kb", home / "model", precision="int8") as linker:
        found = chances(linker.score("the old bank"))
    assert_same(found, psi(home, "the old bank"), tolerance=0.1)
    with pytest.raises(AssertionError):
        assert_same(found, psi(home, "the old bank"))


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_auto_is_the_precision_that_the_model_s_config_says(own, precision):
    file = own / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "precision": precision}))
    with Linker.load(own / "senses.kb", own / "model") as linker, load(own) as exact:
        found, wanted = (chances(one.score("the old bank")) for one in (linker, exact))
    assert (found == wanted) is (precision == "fp32")


def small(home, folder, encoder, **options):
    """The model as a small linker beside its base."""
    model = load_encoder(str(home / "model"))
    vectors = EntityVectors.open(home / "senses.kb.vectors")
    model.infusions[0].take(EntityTable.of(vectors))
    ids = vectors.ids.take(range(len(vectors)))
    table = Int8EntityTable.build(model.infusions[0].linker.entities, ids, fingerprint=options.pop("fingerprint", ""))
    settings = LinkerSettings(kb="senses")
    return save_linker(folder, model, load_tokenizer(encoder), settings, entities=table, **options)


@pytest.mark.parametrize("base", [True, False], ids=["changes", "whole"])
def test_a_run_becomes_a_small_linker(own, encoder, base):
    text = "the old bank near the river bank"
    with KnowledgeBase.open(own / "senses.kb") as kb:
        saved = shrink(own, kb, own / "small", base=encoder if base else None, rank=2)
        assert saved.bytes > 0
        with pytest.raises(UsageError, match="is there already; name a new folder"):
            shrink(own, kb, own / "small")
        with pytest.raises(UsageError, match="has no knowledge layer"):
            shrink(encoder, kb, own / "other")
    expected = psi(own, text)
    shutil.rmtree(own / "senses.kb.vectors")
    with load(own, "small") as linker:
        assert_same(chances(linker.score(text)), expected, tolerance=0.02)


def test_a_small_linker_has_what_changed_and_needs_no_vectors(own, encoder):
    base, model = load_encoder(encoder), load_encoder(str(own / "model"))
    torch.manual_seed(0)
    weight = model.encoder.layer[0].intermediate.dense.weight
    with torch.no_grad():
        weight += torch.randn(len(weight), 2) @ torch.randn(2, weight.shape[1]) * 0.1
        model.encoder.layer[0].output.LayerNorm.bias += 0.1
    assert not torch.equal(weight, base.encoder.layer[0].intermediate.dense.weight)
    model.save_pretrained(own / "model")
    expected = psi(own, "the old bank near the river bank")
    with load(own) as before:
        unlike = chances(before.score("the old bank near the river bank"))
    saved = small(own, own / "small", encoder, base=encoder, rank=2)
    assert sorted(path.name for path in (own / "small").iterdir()) == [
        "entities.safetensors",
        "linker.json",
        "linker.safetensors",
    ]
    assert saved.error < 1e-6
    shutil.rmtree(own / "senses.kb.vectors")
    with load(own, "small") as linker:
        assert_same(chances(linker.score("the old bank near the river bank")), expected, tolerance=0.02)
    assert_same(unlike, expected)


def test_a_low_rank_says_what_it_loses(own, encoder, monkeypatch):
    monkeypatch.setattr("wellread.models.knowbert.saving._SMALL", 16)
    model = load_encoder(str(own / "model"))
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight.add_(torch.randn(24, 16))
    model.save_pretrained(own / "model")
    lost = [small(own, own / f"small{rank}", encoder, base=encoder, rank=rank).error for rank in (1, 8, 16)]
    assert lost[0] > lost[1] > lost[2]
    assert lost[2] < 1e-6


def test_changes_of_any_rank_are_kept_in_4_bits(own, encoder, monkeypatch):
    monkeypatch.setattr("wellread.models.knowbert.saving._SMALL", 16)
    model = load_encoder(str(own / "model"))
    torch.manual_seed(0)
    change = torch.randn(24, 16) * 0.3
    with torch.no_grad():
        model.encoder.layer[0].intermediate.dense.weight.add_(change)
    model.save_pretrained(own / "model")
    saved = small(own, own / "small", encoder, base=encoder)
    assert 0.01 < saved.error < 0.12
    assert small(own, own / "low", encoder, base=encoder, rank=8).error > saved.error
    read = TorchLayer.load(SavedLayer.of(own / "small", "senses")).encoder.encoder.layer[0].intermediate.dense.weight
    lost = (read - model.encoder.layer[0].intermediate.dense.weight.detach()).norm() / change.norm()
    assert float(lost) == pytest.approx(saved.error, rel=0.01)


def test_a_linker_may_be_written_with_its_encoder(own, encoder):
    small(own, own / "whole", encoder)
    shutil.rmtree(own / "senses.kb.vectors")
    with load(own, "whole") as linker:
        assert [link.text for link in linker.link("the old bank").links] == ["old", "bank"]


def test_what_the_ready_table_does_not_know_is_left_out_with_a_note(own, encoder, capsys):
    small(own, own / "small", encoder, base=encoder)
    with load(own, "small") as linker:
        linker.kb.add(Entity("tree", "oak", "a tree", "n", 1, {"oak": 1}))
        assert links(linker.link("the oak")) == []
        assert linker.link("the old bank").links
    err = capsys.readouterr().err
    assert err.count("senses.kb has entities without a vector, which are left out: 1 so far (tree)") == 1


def test_what_is_new_is_projected_if_its_vectors_can_be_had(own, encoder, capsys):
    small(own, own / "small", encoder, base=encoder, fingerprint=Hashing.fingerprint)
    with load(own, "small") as linker:
        before = chances(linker.score("the old bank"))
        linker.kb.add(Entity("pile", "bank", "a pile of snow", "n", 1, {"bank": 4, "oak": 1}))
        EntityVectors.build(linker.kb, Hashing())
        expected = psi(own, "the old bank oak")
        assert_same(chances(linker.score("the old bank oak")), expected, tolerance=0.02)
        assert links(linker.link("the oak")) == [(4, 7, "pile")]
        linker.kb.remove("pile")
        assert_same(chances(linker.score("the old bank")), before)
    assert capsys.readouterr().err == ""


def test_the_encoder_of_what_is_new_is_loaded_once(own, encoder, monkeypatch, capsys):
    loaded = []
    monkeypatch.setattr("wellread.models.knowbert.linker_entities.fingerprint_of", lambda config: Hashing.fingerprint)
    monkeypatch.setattr(
        "wellread.models.knowbert.linker_entities.EntityTower.load", lambda config: loaded.append(config) or Hashing()
    )
    small(own, own / "small", encoder, base=encoder, fingerprint=Hashing.fingerprint)
    shutil.rmtree(own / "senses.kb.vectors")
    with load(own, "small") as linker:
        for name in ("oak", "elm"):
            linker.kb.add(Entity(name, name, "a tree", "n", 1, {name: 1}))
            assert [link.entity for link in linker.link(f"the {name}").links] == [name]
    assert len(loaded) == 1
    assert capsys.readouterr().err == ""


def test_a_linker_with_vectors_follows_the_kb_as_far_as_these_do(own, capsys, monkeypatch):
    with load(own) as linker:
        first = linker.score("the old bank")
        linker.kb.add(Entity("pile", "bank", "a pile of snow", "n", 1, {"bank": 4}))
        assert "pile" not in chances(linker.score("the old bank"))[8, 12]
        assert "left out: 1 so far (pile)" in capsys.readouterr().err
        monkeypatch.setattr(
            "wellread.models.knowbert.linker_entities.LinkerEntities._encoder", lambda self, fingerprint: Hashing()
        )
        linker.kb.update(Entity("pile", "bank", "a pile of clouds", "n", 1, {"bank": 4}))
        assert "pile" in chances(linker.score("the old bank"))[8, 12]
        assert [link.text for link in first.document().links] == ["old", "bank"]


def test_a_kind_that_the_model_does_not_know_leaves_rows_and_vectors_in_step(own, encoder, capsys, monkeypatch):
    write_model(own / "kinds", encoder, layer(kinds=3, kind_width=2))
    monkeypatch.setattr(
        "wellread.models.knowbert.linker_entities.LinkerEntities._encoder", lambda self, fingerprint: Hashing()
    )
    with load(own, "kinds") as linker:
        before = chances(linker.score("the old bank"))
        linker.kb.add(Entity("pile", "bank", "a pile of snow", "new kind", 1, {"oak": 1}))
        assert_same(chances(linker.score("the old bank")), before)
        assert linker.link("the oak").links == ()
    assert "left out: 1 so far (pile)" in capsys.readouterr().err


def parts_of(home, kb, folder="model"):
    return load_parts(home / folder, kb, "fp32")


class Verbs:
    """A tagger to whom the word bank is a verb, and near is nothing to link."""

    def tag(self, texts):
        words = [
            ((number << 40) + text.index(word), text.index(word) + len(word), kind)
            for number, text in enumerate(texts)
            for word, kind in (("old", 2), ("bank", 1), ("river", -2))
            if word in text
        ]
        places, ends, kinds = np.array(sorted(words), np.int64).reshape(-1, 3).T
        return PosTags(places, ends, kinds.astype(np.int8))


def test_words_keep_to_their_part_of_speech(home):
    with KnowledgeBase.open(home / "senses.kb") as kb:
        backend = KnowBertBackend(parts_of(home, kb), kb, tags=Verbs())
        (scored,) = backend.score_many(["the old bank near the river"])
        found = chances(scored)
    assert {span: set(some) for span, some in found.items()} == {(4, 7): {"aged", "past"}, (8, 12): {"tilt"}}
    assert found[8, 12]["tilt"] == pytest.approx(1)


def test_the_most_likely_senses_are_counted_within_a_part_of_speech(home):
    with KnowledgeBase.open(home / "senses.kb") as kb:
        parts = parts_of(home, kb)
        few = replace(parts.settings, offers=replace(parts.settings.offers, candidates=1))
        assert kb.candidates("bank", limit=1)[0].entity != "tilt"
        backend = KnowBertBackend(replace(parts, settings=few), kb, tags=Verbs())
        (scored,) = backend.score_many(["the old bank near the river, the leaves"])
        found = {span: set(some) for span, some in chances(scored).items()}
    assert found[8, 12] == {"tilt"}
    assert all(len(some) == 1 for some in found.values())


class Late(Verbs):
    """Tagger that finishes after the encoder."""

    def tag(self, texts):
        time.sleep(0.1)
        return super().tag(texts)


@pytest.mark.parametrize("windows", [False, True], ids=["sentences", "windows"])
def test_tags_that_come_early_or_late_make_no_difference(home, windows, monkeypatch):
    texts = [TEXT, "", "nothing here is known", "the bank", " ".join(["the old bank near the river"] * 9)]
    monkeypatch.setattr(knowbert, "_TOKENS", 40)
    with KnowledgeBase.open(home / "senses.kb") as kb:
        parts = parts_of(home, kb)
        parts = replace(parts, settings=replace(parts.settings, sentences=0 if windows else 1, width=24))
        late = KnowBertBackend(parts, kb, tags=Late())
        early = KnowBertBackend(parts, kb, tags=Verbs())
        monkeypatch.setattr(early, "_tagged", lambda texts: nullcontext(finished(early.tagger.tag(texts))))
        for some in (texts, texts[::-1], texts[:1], texts[4:]):
            assert [list(chances(one).items()) for one in late.score_many(some)] == [
                list(chances(one).items()) for one in early.score_many(some)
            ]
        alone = [chances(early.score_many([text])[0]) for text in texts]
        for found, expected in zip(late.score_many(texts), alone, strict=True):
            assert_same(chances(found), expected)
        assert next(map(len, late.window_tokenizer.tokenize(texts[4:]))) > 1 or not windows


def finished(tags):
    future = Future()
    future.set_result(tags)
    return future


def test_what_mentions_are_like_does_not_depend_on_their_candidates(home):
    text = "the old bank near the river bank"
    with load(home) as linker:
        backend = linker.backend
        backend.score_many([text])
        ((window,),) = backend.window_tokenizer.tokenize([text], words=False)
        candidates = backend._provider.find_candidates([window.input])
        ours = candidates["senses"]
        kept = np.arange(ours.entities.shape[1]) == 0
        left = replace(ours, entities=np.where(kept, ours.entities, -1), priors=ours.priors * kept)
        later = backend.layers([window], candidates)(left)
        at_once = backend.layers([window], {"senses": left})(left)
        assert np.array_equal(later, at_once)
        assert (later[:, 1:] == float("-inf")).all()


def test_a_tagger_that_fails_says_so_and_the_next_text_is_read(home):
    class Failing(Verbs):
        def tag(self, texts):
            if "bank" in texts[0]:
                raise InputError("no tags for this")
            return super().tag(texts)

    with KnowledgeBase.open(home / "senses.kb") as kb:
        backend = KnowBertBackend(parts_of(home, kb), kb, tags=Failing())
        with pytest.raises(InputError, match="no tags for this"):
            backend.score_many(["the old bank"])
        assert chances(backend.score_many(["the old"])[0]).keys() == {(4, 7)}


def test_a_tag_that_fits_no_candidate_is_not_believed():
    tags = PosTags(np.array([5]), np.array([9]), np.array([1], np.int8))
    kinds, content_mask = tags.of(np.array([0, 0, 1]), np.array([[5, 9], [5, 8], [5, 9]]))
    assert kinds.tolist()[0] == 1
    assert (kinds[1:] < 0).all()
    assert content_mask.all()


def test_spacy_tags_parts_of_speech(monkeypatch):
    from wellread.assets import is_cached
    from wellread.models.knowbert.pos_tags import KINDS, PosTagger

    if not is_cached("spacy-en"):
        pytest.skip("spaCy's model is not there; run: make assets")
    monkeypatch.setattr("wellread.models.knowbert.pos_tags._MAX_CHARS", 64)
    texts = ["", "He leaves the old leaves.", "word " * 40 + "x" * 100 + " leaves"]
    tags = PosTagger().tag(texts)
    words = [(int(key) >> 40, int(key) & (1 << 40) - 1, kind) for key, kind in zip(tags.keys, tags.kinds, strict=True)]
    assert [(start, KINDS[kind]) for text, start, kind in words if text == 1 and kind >= 0] == [
        (3, "v"),
        (14, "a"),
        (18, "n"),
    ]
    assert (2, 301) in [word[:2] for word in words]


def test_cached_rules_give_the_same_tags():
    from wellread.assets import is_cached
    from wellread.models.knowbert.pos_tags import PosTagger

    if not is_cached("spacy-en"):
        pytest.skip("spaCy's model is not there; run: make assets")
    texts = [
        "There is nothing that he'd have done, isn't there? It's gonna rain; let's go.",
        "That these things (which ones?) don't matter to them: 3 of 4 said so .\n\n  And to whom?",
        "Whoever has been there will've seen the old U.S. leader's leaves leave -- again.",
    ]
    fast, slow = PosTagger(), PosTagger()
    slow._ruler = None
    slow._disabled.remove("attribute_ruler")
    for some in (texts, texts, texts[::-1]):
        found, expected = fast.tag(some), slow.tag(some)
        for name in PosTags.__slots__:
            assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert len(set(found.kinds.tolist())) == 5


@pytest.mark.parametrize(
    ("pattern", "attrs", "alone"),
    [
        ([{"TAG": "NN"}], {"POS": "NOUN"}, True),
        ([{"TAG": "NN", "LOWER": {"IN": ["a"]}}], {"POS": "NOUN"}, True),
        ([{"LOWER": "gon"}, {"LOWER": "na"}], {"LEMMA": "go"}, True),
        ([{"LOWER": "gon"}, {"LOWER": "na"}], {"POS": "VERB"}, False),
        ([{"DEP": "expl"}, {"LOWER": "is"}], {"POS": "VERB"}, True),
        ([{"DEP": ""}, {"LOWER": "is"}], {"POS": "VERB"}, False),
        ([{"TAG": "NN", "OP": "+"}], {"POS": "NOUN"}, False),
        ([{"ENT_TYPE": "ORG"}], {"POS": "PROPN"}, False),
    ],
)
def test_rules_are_remembered_only_where_a_word_alone_decides(pattern, attrs, alone):
    from wellread.models.knowbert.pos_tags import is_context_free

    assert is_context_free([{"patterns": [pattern], "attrs": attrs, "index": 0}]) is alone


def test_below_the_threshold_nothing_is_meant(own, encoder):
    text = "the old bank"
    write_model(own / "margin", encoder, layer(mode="margin", threshold=0.0))
    scores = psi(own, text, "margin")
    with load(own, "margin") as linker:
        parts = linker.backend
        assert parts.decoding.nil is False
        (low,), (high,) = (
            KnowBertBackend(
                replace(parts_of(own, linker.kb, "margin"), config=layer(mode="margin", threshold=threshold)),
                linker.kb,
                decoding=Decoding(threshold=0.0, nil=True),
            ).score_many([text])
            for threshold in (-50.0, 50.0)
        )
        assert_same(chances(low), scores)
        assert [link.entity for link in high.document().links] == [None, None]
        assert high.document(nil=False).links == ()


def test_what_can_be_linked_to_may_be_restricted(home, tmp_path):
    with load(home, kinds=["v"]) as linker:
        assert [link.entity for link in linker.link("the old bank").links] == ["tilt"]
    with load(home, among=["shore", "past"]) as linker:
        assert [link.entity for link in linker.link("the old bank").links] == ["past", "shore"]


def test_layers_below_have_their_own_knowledge(own, encoder, monkeypatch):
    monkeypatch.setattr(
        "wellread.models.knowbert.torch_linker.open_kb", lambda name: KnowledgeBase.open(own / f"{name}.kb")
    )
    with write_kb(own / "places.kb", [Entity("x", "river", "a place", "n", 1, {"river": 1, "old": 1})]) as kb:
        EntityVectors.build(kb, Hashing())
    write_model(own / "two", encoder, layer(kb="places"), layer(layer=1))
    text = "the old bank near the river"
    with load(own, "two") as linker:
        assert_same(chances(linker.score(text)), psi(own, text, "two"))
    with pytest.raises(UsageError, match="int8 does not support knowledge layers below"):
        Linker.load(own / "senses.kb", own / "two", precision="int8")


def test_layers_above_are_left_out(own, encoder):
    write_model(own / "two", encoder, layer(), layer(kb="places", layer=1))
    with load(own, "two") as linker:
        assert [link.text for link in linker.link("the old bank").links] == ["old", "bank"]
    saved = SavedLayer.of(own / "two", "senses")
    assert len(saved.encoder_weights().layers) == len(TorchLayer.load(saved).encoder.encoder.layer) == 1


@pytest.mark.parametrize("folder", ["model", "small"])
def test_an_encoder_that_the_runtime_cannot_run_is_run_by_torch(own, encoder, folder, monkeypatch):
    def refuse(*folder, **options):
        raise UsageError("the runtime does not know it; use torch")

    small(own, own / "small", encoder, base=encoder)
    with load(own, folder) as linker:
        expected = chances(linker.score(TEXT))
    monkeypatch.setattr("wellread.models.knowbert.loading.check_supported", refuse)
    with Linker.load(own / "senses.kb", own / folder) as linker:
        assert_same(chances(linker.score(TEXT)), expected)
    with pytest.raises(UsageError, match="does not know it; use torch"):
        Linker.load(own / "senses.kb", own / folder, precision="int8")


def test_a_run_of_word_senses_says_how_it_was_trained(own):
    manifest = {"recipe": {"task": "senses", "senses": {"together": 3}, "encoder": {"longest": 77}}}
    manifest["recipe"]["offers"] = {"senses": {"reading": {"candidates": 2}}}
    (own / "model" / "task.json").write_text(json.dumps(manifest))
    with Linker.load(own / "senses.kb", own, precision="fp32") as linker:
        settings = linker.backend.settings
        assert (settings.sentences, settings.width, settings.offers.candidates) == (3, 77, 2)
        assert len(linker.link("bank").links[0].candidates) == 2


def test_an_encoder_that_was_pretrained_says_so_too(own):
    links = [{"kb": "other", "form": "senses", "together": 9}, {"kb": "senses", "form": "senses", "together": 2}]
    manifest = {"layers": [], "recipe": {"pretrain": "knowbert", "links": links, "encoder": {"longest": 66}}}
    manifest["recipe"]["offers"] = {"senses": {"reading": {"candidates": 1}}}
    (own / "model" / "knowledge.json").write_text(json.dumps(manifest))
    with load(own, "model") as linker:
        settings = linker.backend.settings
        assert (settings.sentences, settings.width, settings.offers.candidates) == (2, 66, 1)
        assert len(linker.link("bank").links[0].candidates) == 1


def test_layers_below_get_the_candidates_of_their_recipe(own, encoder, monkeypatch):
    monkeypatch.setattr("wellread.models.knowbert.torch_linker.open_kb", KnowledgeBase.open)
    with write_kb(own / "towns.kb", [Entity("x", "river", "a place", "n", 1, {"river": 1, "old": 1})]) as kb:
        EntityVectors.build(kb, Hashing(), own / "elsewhere")
    write_model(own / "two", encoder, layer(kb="places"), layer(layer=1))
    places = {"kb": str(own / "towns.kb"), "vectors": str(own / "elsewhere"), "reading": {"candidates": 3}}
    (own / "two" / "task.json").write_text(json.dumps({"recipe": {"task": "RTE", "offers": {"places": places}}}))
    with load(own, "two") as linker:
        assert linker.backend._candidate_configs["places"].candidates == 3
        assert [link.text for link in linker.link("the old bank").links] == ["old", "bank"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "model", "tags": "spacy"}, "has no parts of speech"),
        ({"model": "model", "tags": "maybe"}, "choose auto, spacy or none"),
        ({"model": "model", "mentions": "spacy"}, "finds its own mentions"),
        ({"model": "three"}, "layers of a, b, and none of senses"),
        ({"model": "nowhere"}, "there is no model"),
    ],
)
def test_what_cannot_be_loaded_says_why(own, encoder, options, message):
    if options["model"] == "three":
        write_model(own / "three", encoder, layer(kb="a"), layer(kb="b"))
    with pytest.raises(UsageError, match=message):
        load(own, **options)


@pytest.mark.parametrize("error", [MissingExtraError("no spaCy"), AssetError("not fetched")])
def test_without_spacy_senses_are_linked_without_tags(error, monkeypatch, capsys):
    def missing():
        raise error

    monkeypatch.setattr(knowbert, "PosTagger", missing)
    assert knowbert._load_tagger(required=False) is None
    assert str(error) in capsys.readouterr().err
    with pytest.raises(type(error)):
        knowbert._load_tagger(required=True)


def test_the_packaged_linker_is_named_only_where_it_is(home, monkeypatch, tmp_path):
    monkeypatch.setattr(packaged, "SENSES", tmp_path / "none")
    with pytest.raises(
        UsageError, match="this installation does not contain knowbert; give the folder of a trained one"
    ):
        Linker.load(home / "senses.kb", "knowbert")
    monkeypatch.setattr(packaged, "SENSES", home / "model")
    with Linker.load(home / "senses.kb", "knowbert", precision="fp32") as linker:
        assert linker.link("the bank").meta["model"] == "knowbert"


def test_a_damaged_folder_says_so(own, encoder):
    small(own, own / "small", encoder, base=encoder)
    (own / "small" / "linker.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="copy the linker again"):
        load(own, "small")
    (own / "small" / "linker.json").write_text("{}")
    with pytest.raises(InputError, match="its format is another"):
        load(own, "small")


def test_given_spans_that_are_names_get_their_meaning_and_others_none(home):
    with load(home) as linker:
        spans = [(4, 7), (8, 12), (8, 17), (22, 32), (28, 32)]
        (document,) = linker.link_given([TEXT], [spans])
        likeliest = {span: max(some, key=some.get) for span, some in chances(linker.score(TEXT)).items()}
    assert [(link.start, link.end) for link in document.links] == spans
    assert links(document)[2] == (8, 17, None)  # "bank near" is not an alias
    assert [found for found in links(document) if found[:2] != (8, 17)] == [
        (*span, likeliest[span]) for span in spans if span != (8, 17)
    ]
