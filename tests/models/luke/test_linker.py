"""LUKE as a linker: scores of candidates, order of linking, and decisions by prior."""

import math
import shutil

import numpy as np
import pytest
import torch

from tests import luke_models as lukes
from tests.toy_models import ENTITIES, PEOPLE, tokenizer, write_kb
from wellread.document import Document, Mention
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder, silence
from wellread.encoders.packing import Packing
from wellread.errors import InputError, UsageError
from wellread.kb.records import Entity
from wellread.linking.linker import Linker
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.linker import LukeBackend
from wellread.models.luke.mention_windows import MentionTokenizer
from wellread.models.luke.model import luke_of
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.text.tokenization import Mark

MORE = [
    *ENTITIES,
    Entity("cork2", "cork person", "a person", "person", 1, {"cork": 1}),
    Entity("new", "mercury city", "a city", "city", 1, {"mercury": 2}),
]


@pytest.fixture(scope="module")
def kb(tmp_path_factory):
    with write_kb(tmp_path_factory.mktemp("kb") / "toy.kb", MORE) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder, kb):
    """Folder of a random model whose vocabulary has all entities except "new"."""
    made = tmp_path_factory.mktemp("luke")
    vocabulary = EntityVocabulary.of_ids(entity.id for entity in MORE[:-1])
    model = infuse(load_encoder(encoder), [LukeConfig(entities=len(vocabulary), dim=8, predicts=True)])
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in luke_of(model).parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    with silence():
        model.save_pretrained(made)
    tokenizer().save(str(made / "tokenizer.json"))
    vocabulary.save(made)
    return made


def logits_of(backend, text, rows):
    """Return the logits of all rows for each mention, computed naively; `rows` are (name, row) in order."""
    marks = [Mark(0, text.index(name), text.index(name) + len(name)) for name, _ in rows]
    (window,) = backend.window_tokenizer.tokenize(text, marks=marks).windows
    ids = torch.from_numpy(window.ids)
    spans = torch.from_numpy(window.mark_tokens) - torch.tensor([0, 1])
    entities = {
        "text_of": torch.zeros(len(rows), dtype=torch.long),
        "ids": torch.tensor([row for _, row in rows]),
        "spans": spans,
    }
    with torch.no_grad():
        read = backend.encoder.read(ids, Packing.of([len(ids)]), torch.zeros_like(ids), entities=entities)
        return backend.luke.predict(read.outputs["entities"]).double()


def test_local_scores_are_those_of_the_head_and_the_prior(kb, folder):
    text, mask = "mercury wrote to cork", 2
    for trust in (0.0, 1.0, 0.5):
        backend = Linker.load(kb, folder, order="local", trust=trust).backend
        (document,) = backend.link_many([text])
        scores = logits_of(backend, text, [("mercury", mask), ("cork", mask)])
        first, second = document.links
        rows = backend.vocabulary.rows_of(["p2", "cork2"]).tolist()
        weighed = scores[1, rows].exp() * torch.tensor([0.75, 0.25]) ** trust
        expected = dict(zip(["p2", "cork2"], (weighed / weighed.sum()).tolist(), strict=True))
        assert {one.entity: pytest.approx(one.score, abs=1e-5) for one in second.candidates} == expected
        assert second.entity == max(expected, key=expected.get)
        # "new" is not in the vocabulary, and keeps its fifth; the others share the rest.
        rows = backend.vocabulary.rows_of(["planet", "god"]).tolist()
        weighed = scores[0, rows].exp() * torch.tensor([0.75, 0.25]) ** trust
        expected = dict(zip(["planet", "god"], (0.8 * weighed / weighed.sum()).tolist(), strict=True)) | {"new": 0.2}
        assert {one.entity: pytest.approx(one.score, abs=1e-5) for one in first.candidates} == expected


def test_globally_the_most_confident_is_linked_first_and_the_others_given_it(kb, folder):
    text, mask = "mercury wrote to cork", 2
    backend = LukeBackend(
        load_encoder(str(folder)).eval(),
        MentionTokenizer(tokenizer(), longest=64),
        EntityVocabulary.load(folder),
        kb,
        trust=0.0,
        passes=8,
    )
    names = [("mercury", ("planet", "god")), ("cork", ("p2", "cork2"))]
    rows = {name: mask for name, _ in names}
    expected = {}
    while len(expected) < len(names):
        scores = logits_of(backend, text, list(rows.items()))
        best = {}
        for row, (name, ids) in enumerate(names):
            if name not in expected:
                share = 0.8 if name == "mercury" else 1.0
                found = share * scores[row, backend.vocabulary.rows_of(ids).tolist()].softmax(0)
                best[name] = (float(found.max()), ids[int(found.argmax())])
        name = max(best, key=best.get)
        expected[name] = best[name]
        rows[name] = int(backend.vocabulary.rows_of([best[name][1]])[0])
    (document,) = backend.link_many([text])
    assert {link.text: (pytest.approx(link.score, abs=1e-5), link.entity) for link in document.links} == expected
    local = LukeBackend(
        backend.encoder, backend.window_tokenizer, backend.vocabulary, kb, trust=0.0, order="local"
    ).score_many([text])
    assert not np.allclose(np.exp(local[0].entity_log_p), np.exp(backend.score_many([text])[0].entity_log_p))


def test_the_order_is_an_option_of_the_command(kb, folder, wellread):
    text = "mercury wrote to cork"
    results = {
        order: wellread("link", "--kb", kb.path, "--model", folder, *options, "--trust", 0, "--format", "json", text)
        for order, options in {"usual": (), "global": ("--order", "global"), "local": ("--order", "local")}.items()
    }
    assert {result.code for result in results.values()} == {0}
    assert results["usual"].out == results["global"].out
    for order in ("global", "local"):
        with Linker.load(kb.path, folder, order=order, trust=0.0) as linker:
            assert Document.from_json(results[order].out) == linker.link(text)
    assert results["local"].out != results["global"].out


def test_decisions_by_prior_are_logged_once(kb, folder, capsys):
    linker = Linker.load(kb, folder, order="local")
    linker.link("who is cork")
    assert capsys.readouterr().err == ""
    for _ in range(2):
        linker.link("mercury wrote to cork")
    message = "1 of 5 candidates (20.0%) have no row in the model's entity vocabulary and keep their prior: new\n"
    assert capsys.readouterr().err == message
    Linker.load(kb, folder, order="local", among=["new"]).link("mercury wrote to cork")
    message = "1 of 1 mentions (100.0%) have only such candidates or fit into no window, and are linked by the prior\n"
    assert capsys.readouterr().err.endswith(message)


def test_the_number_of_passes_is_limited(kb, folder, monkeypatch, wellread):
    text = " and ".join(PEOPLE[:6])
    counts = {}
    read = LukeBackend._score_batch
    for passes in (1, 3, 8):
        seen = []
        monkeypatch.setattr(LukeBackend, "_score_batch", lambda *args, seen=seen: (seen.append(1), read(*args))[1])
        Linker.load(kb, folder, passes=passes).link(text)
        counts[passes] = len(seen)
    assert counts == {1: 1, 3: 3, 8: 6}
    results = [wellread("link", "--kb", kb.path, "--model", folder, *some, text) for some in ((), ("--passes", 0))]
    assert (results[0].code, results[1].code) == (0, 2)


def test_long_texts_lose_no_mention_and_windows_are_independent(kb, folder):
    texts = [" and ".join(["mercury is a planet near cork"] * 40), "", "who is it", "mercury god", "in cork"]
    backend = LukeBackend(
        load_encoder(str(folder)).eval(),
        MentionTokenizer(tokenizer(), longest=32, most=5),
        EntityVocabulary.load(folder),
        kb,
    )
    found = list(backend.link_many(texts))
    assert [len(document.links) for document in found] == [80, 0, 0, 1, 1]
    for text, document in zip(texts, found, strict=True):
        (alone,) = backend.link_many([text])
        assert [link.entity for link in alone.links] == [link.entity for link in document.links]
        assert np.allclose([link.score for link in alone.links], [link.score for link in document.links], atol=1e-5)


class Given:
    """Annotator that returns every word that begins with a letter."""

    def __init__(self, letters):
        self.letters = letters

    def annotate(self, texts):
        for text in texts:
            words = [word for word in dict.fromkeys(text.split()) if word[0] in self.letters]
            yield [Mention(text.index(word), text.index(word) + len(word), word) for word in words]


def test_mentions_may_be_given_and_unknown_ones_are_nil(kb, folder):
    with_nil = Linker.load(kb, folder, mentions=Given("mx"), nil=True)
    links = with_nil.link("cork , mercury and xanadu").links
    assert [(link.text, link.entity is None) for link in links] == [("mercury", False), ("xanadu", True)]
    assert math.isclose(links[1].score, 1.0, abs_tol=1e-6)
    assert len(Linker.load(kb, folder, mentions=Given("mx")).link("mercury xanadu").links) == 1


def test_given_spans_are_linked_as_those_of_an_annotator(kb, folder):
    text = "cork , mercury and xanadu"
    wanted = Linker.load(kb, folder, mentions=Given("mx"), nil=True).link(text).links
    (found,) = Linker.load(kb, folder).link_given([text], [[(link.start, link.end) for link in wanted]])
    assert [(link.text, link.entity) for link in found.links] == [(link.text, link.entity) for link in wanted]
    assert found.links[0].candidates == wanted[0].candidates


def test_mentions_without_candidates_are_masked_entities_too(kb, folder):
    text, mask = "cork and xanadu", 2
    backend = Linker.load(kb, folder, mentions=Given("cx"), order="local", trust=0.0, nil=True).backend
    cork, _ = next(iter(backend.link_many([text]))).links
    scores = logits_of(backend, text, [("cork", mask), ("xanadu", mask)])
    rows = backend.vocabulary.rows_of(["p2", "cork2"]).tolist()
    wanted = dict(zip(["p2", "cork2"], scores[0, rows].softmax(0).tolist(), strict=True))
    assert {one.entity: pytest.approx(one.score, abs=1e-5) for one in cork.candidates} == wanted
    alone = logits_of(backend, text, [("cork", mask)])[0, rows].softmax(0)
    assert not torch.allclose(scores[0, rows].softmax(0), alone, atol=1e-3)


def test_a_mention_whose_candidates_have_no_rows_is_unknown_from_the_second_pass_on(kb, folder):
    text = "mercury wrote to cork and brno"
    among = ["new", "p2", "cork2", "p1"]
    linker = Linker.load(kb, folder, among=among, trust=0.0)
    rows = []
    read = linker.backend.encoder.read

    def note(*args, **more):
        rows.append(more["entities"]["ids"].tolist())
        return read(*args, **more)

    linker.backend.encoder.read = note
    linker.link(text)
    vocabulary = linker.backend.vocabulary
    assert rows[0] == [vocabulary.mask] * 3
    assert rows[1][0] == vocabulary.unk
    assert sorted(rows[1][1:])[0] == vocabulary.mask  # one of both is linked by now


def test_a_span_given_twice_gets_the_same_scores(kb, folder):
    text, spans = "mercury wrote to cork", [(0, 7), (17, 21), (0, 7)]
    backend = Linker.load(kb, folder, trust=0.0).backend
    (once,) = backend.score_given([text], [spans[:2]])
    (twice,) = backend.score_given([text], [spans])
    assert twice.spans.tolist() == [[0, 7], [0, 7], [17, 21]]
    assert np.allclose(twice.entity_log_p, once.entity_log_p[[0, 0, 1]])


def test_candidates_may_be_restricted(kb, folder):
    assert Linker.load(kb, folder, among=["god"]).link("mercury").links[0].entity == "god"
    (link,) = Linker.load(kb, folder, kinds=["city"]).link("mercury").links
    assert link.entity == "new"  # the model has no row for it: by its name alone
    assert not Linker.load(kb, folder, among=["p0"]).link("mercury").links
    assert not Linker.load(kb, folder, threshold=1.0).link("mercury").links


def test_a_trained_model_disambiguates(kb, encoder):
    """ "mercury" is a god in texts about writing, and a planet in texts about rivers."""
    vocabulary = EntityVocabulary.of_ids(["planet", "god"])
    model = infuse(load_encoder(encoder), [LukeConfig(entities=len(vocabulary), dim=8, predicts=True)])
    frames = {"god": "{} wrote to mercury", "planet": "the river of {} is near mercury"}
    window_tokenizer, luke = MentionTokenizer(tokenizer(), longest=32), luke_of(model)
    texts = [(frame.format(name), id) for name in PEOPLE[:8] for id, frame in frames.items()]
    windows = [
        window_tokenizer.tokenize(text, marks=[Mark(0, text.index("mercury"), text.index("mercury") + 7)]).windows[0]
        for text, _ in texts
    ]
    ids = torch.from_numpy(np.concatenate([one.ids for one in windows]))
    entities = {
        "text_of": torch.arange(len(windows)),
        "ids": torch.full((len(windows),), vocabulary.mask),
        "spans": torch.from_numpy(np.concatenate([one.mark_tokens for one in windows])) - torch.tensor([0, 1]),
    }
    gold = torch.from_numpy(vocabulary.rows_of([id for _, id in texts]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(40):
        read = model.read(ids, Packing.of([len(one) for one in windows]), torch.zeros_like(ids), entities=entities)
        loss = torch.nn.functional.cross_entropy(luke.predict(read.outputs["entities"]), gold)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    backend = LukeBackend(model.eval(), window_tokenizer, vocabulary, kb, trust=0.0)
    questions = [(frame.format(name), id) for name in PEOPLE[8:] for id, frame in frames.items()]
    found = [
        next(link.entity for link in document.links if link.text == "mercury")
        for document in backend.link_many([text for text, _ in questions])
    ]
    assert found == [id for _, id in questions]


def test_a_luke_that_cannot_link_names_what_is_missing(kb, folder, tmp_path):
    for theirs in (tmp_path / "theirs", tmp_path / "run" / "model"):
        lukes.save(lukes.build("ForMaskedLM"), theirs)
        EntityVocabulary.of_ids(f"Q{number}" for number in range(7)).save(theirs)
    for name in ("theirs", "run"):
        with pytest.raises(InputError, match=r"convert it first: wellread convert luke .* --to NEW"):
            Linker.load(kb, tmp_path / name)
    copied = shutil.copytree(folder, tmp_path / "copied")
    (copied / "entity_vocab.json").unlink()
    with pytest.raises(InputError, match=r"has a LUKE model, but no entity_vocab\.json"):
        Linker.load(kb, copied)


def test_unsuitable_models_and_options_raise_errors(kb, folder, encoder):
    with pytest.raises(UsageError, match="wellread has no packaged luke; give the folder"):
        Linker.load(kb, "luke")
    with pytest.raises(UsageError, match="order='best' is not known; choose global or local"):
        Linker.load(kb, folder, order="best")
    model = infuse(load_encoder(encoder), [LukeConfig(entities=4, dim=8)])
    with pytest.raises(UsageError, match="has no head for entities; use a pretrained one"):
        LukeBackend(model, MentionTokenizer(tokenizer()), EntityVocabulary.of_ids(()), kb)
    with pytest.raises(UsageError, match="passes is 0"):
        LukeBackend(model, MentionTokenizer(tokenizer()), EntityVocabulary.of_ids(()), kb, passes=0)


def test_the_model_runs_on_the_device_given(kb, folder):
    with pytest.raises(UsageError, match="device='gpu' is not known"):
        Linker.load(kb, folder, device="gpu")
    linker = Linker.load(kb, folder, device="cpu")
    assert linker.backend.luke.table.weight.device.type == "cpu"
    assert linker.link("mercury wrote to cork") == Linker.load(kb, folder).link("mercury wrote to cork")
