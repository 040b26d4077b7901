"""Adapting a linker to unlabelled texts: pseudo-labels, more trees, the run folder, and marks."""

import csv
import json
from dataclasses import fields
from itertools import product

import numpy as np
import pytest

from tests.adaptation_data import CITIES, DOUBTING, NAMES, copy_toy, stumps, unlabelled
from tests.toy_models import ENTITIES as TOY
from tests.toy_models import FRAMES, write_kb
from wellread import Document, Link, Linker
from wellread.errors import InputError, UsageError
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.linking.evidence import ENCODER, Evidence
from wellread.linking.features import FEATURES
from wellread.linking.link_scorer import LinkScorer
from wellread.models.elq.candidate_pool import Search
from wellread.models.elq.linker import ElqBackend
from wellread.models.elq.load import open_index
from wellread.models.elq.model import Elq
from wellread.training.adaptation.adapt import MODEL, SAMPLE, adapt, apply_corrections, apply_marks
from wellread.training.adaptation.boosting import boost
from wellread.training.adaptation.judgements import Sample, fit_marks, precision, wilson
from wellread.training.adaptation.pseudo_labels import IMPOSTOR, NAME, NESTED, OPEN, label, without_entity
from wellread.training.adaptation.unlabelled import UnlabelledTexts

ENTITIES = [*TOY, *CITIES]
ALL = Search(nearest=50, named=50, floor=-1e9, mentions=10**6)


@pytest.fixture
def here(toy, tmp_path):
    return copy_toy(toy, tmp_path / "toy")


@pytest.fixture
def read(here, tmp_path):
    """Readers of the toy linker over a KB of some entities."""
    opened = []

    def read(entities=ENTITIES, search=ALL):
        kb = write_kb(tmp_path / f"kb{len(opened)}.kb", entities)
        opened.append(kb)
        model = Elq.from_pretrained(here / "model").eval().requires_grad_(False)
        model.mention_head.bias.fill_(5.0)  # proposes every span
        return ElqBackend(model.inference(), kb, open_index(kb, model.config), search=search, scorer=DOUBTING)

    yield read
    for kb in opened:
        kb.close()


def kinds_of(backend, text):
    found = backend.evidence([text])
    spans = label([text], found, backend)
    real = found.take(found.candidate_mask)
    pairs = zip(real.starts.tolist(), real.ends.tolist(), strict=True)
    return {text[start:end]: int(kind) for (start, end), kind in zip(pairs, spans.kinds, strict=False)}


def test_only_rare_names_of_one_entity_are_taken_for_right(read):
    backend = read([*ENTITIES, Entity("x", "the river", "a river", "thing", 1, {"the river": 1})])
    kinds = kinds_of(backend, "mercury and zorbla near the river")
    assert kinds["zorbla"] == NAME
    assert kinds["mercury"] == OPEN  # a planet or a god
    assert kinds["the river"] == OPEN  # common words
    assert kinds_of(backend, "was Zorbla born")["Zorbla"] == NAME


def test_spans_inside_a_name_are_wrong(read):
    backend = read([*ENTITIES, Entity("x", "new zorbla", "a city", "city", 1, {"new zorbla": 1})])
    kinds = kinds_of(backend, "in new zorbla ?")
    assert (kinds["new zorbla"], kinds["zorbla"]) == (NAME, NESTED)
    assert kinds["in new zorbla"] == OPEN


def test_impostors_have_the_evidence_of_a_kb_without_the_entity(read):
    text = ["was zorbla born near the river"]
    full, lacking = read(), read([entity for entity in ENTITIES if entity.title != "zorbla"])
    found, expected = full.evidence(text), lacking.evidence(text)
    (row,) = np.flatnonzero((found.starts == 4) & (found.ends == 10))
    (other,) = np.flatnonzero((expected.starts == 4) & (expected.ends == 10))
    changed = without_entity(found, np.array([row]), full)
    assert changed.ways[row] == expected.ways[other] == ENCODER
    ids = [full.pool.index.entities([one])[0] for one in changed.rows[row] if one >= 0]
    assert ids == [lacking.pool.index.entities([one])[0] for one in expected.rows[other] if one >= 0]
    assert "c0" not in ids
    there = len(ids)
    exact = {field.name for field in fields(Evidence)} - {
        "rows",
        "log_p",
        "nil_log_p",
        "similarity",
        "popularity",
        "context",
    }
    for name in exact - {"priors"}:
        assert getattr(changed, name)[row] == getattr(expected, name)[other], name
    assert not changed.priors[row].any()
    assert changed.popularity[row] == pytest.approx(expected.popularity[other], abs=0.1)  # ranks of fewer entities
    np.testing.assert_allclose(changed.log_p[row, :there], expected.log_p[other, :there], atol=1e-3)
    assert changed.nil_log_p[row] == pytest.approx(expected.nil_log_p[other], abs=1e-3)
    assert changed.similarity[row] == pytest.approx(expected.similarity[other], abs=1e-3)
    rest = np.delete(np.arange(len(found)), row)
    np.testing.assert_array_equal(changed.take(rest).log_p, found.take(rest).log_p)


def test_impostors_follow_the_spans_and_are_held_out_with_their_names(read):
    backend = read()
    texts = [f"was {place} born" for place in NAMES]
    found = backend.evidence(texts)
    spans = label(texts, found, backend)
    assert spans.count(IMPOSTOR) > 0
    assert (spans.kinds[len(spans.spans) :] == IMPOSTOR).all()
    own = spans.rows[spans.kinds == IMPOSTOR]
    assert (own[:, FEATURES.index("by_encoder")] == 1).all()
    assert (own[:, FEATURES.index("prior")] == 0).all()
    assert 0 < spans.held_out_mask[spans.kinds == NAME].sum() < spans.count(NAME)


def made_rows(count=400):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, len(FEATURES))).astype(np.float32)
    return rows, (rows[:, FEATURES.index("rarest")] < 0.3).astype(float)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_more_trees_learn_what_the_scorer_lacks(scale):
    rows, targets = made_rows()
    scorer = stumps(("words", 0.0, -1.0, 1.0), scale=scale)
    more = boost(scorer, rows, targets, np.ones(len(rows)), trees=30)
    assert len(more.leaf) > len(scorer.leaf)
    assert ((more.probabilities(rows) > 0.5) == (targets > 0.5)).mean() > 0.9
    first = boost(scorer, rows, targets, np.ones(len(rows)), trees=1)
    assert FEATURES[first.feature[-1, 0]] == "rarest"
    assert first.border[-1, 0] == pytest.approx(0.3, abs=0.15)


def test_deep_scorers_get_trees_of_their_depth():
    rows, targets = made_rows()
    deep = LinkScorer(np.zeros((2, 7), np.int16), np.full((2, 7), np.inf, np.float32), np.zeros((2, 8), np.float32))
    flat = boost(stumps(("words", 0.0, 0.0, 0.0)), rows, targets, np.ones(len(rows)))
    same = boost(deep, rows, targets, np.ones(len(rows)))
    assert same.leaf.shape == (42, 8)
    np.testing.assert_allclose(same.logits(rows), flat.logits(rows), atol=1e-5)


def test_little_evidence_leaves_the_scorer_as_it_is():
    rows, targets = made_rows()
    scorer = stumps(("words", 0.0, -1.0, 1.0))
    before = scorer.probabilities(rows)
    few = boost(scorer, rows, targets, np.full(len(rows), 1e-4)).probabilities(rows)
    np.testing.assert_allclose(few, before, atol=0.01)
    assert boost(scorer, rows[:10], targets[:10], np.ones(10)).leaf.shape == scorer.leaf.shape  # below a leaf's least
    own = boost(scorer, rows, before, np.ones(len(rows))).probabilities(rows)
    np.testing.assert_allclose(own, before, atol=1e-6)


def rows_of(table):
    return list(csv.DictReader(table.read_text("utf-8").splitlines()))


def write_texts(path, texts):
    path.write_text("\n".join(texts))
    return path


def test_an_adapted_linker_finds_names_that_it_missed(here, tmp_path):
    texts = write_texts(tmp_path / "texts.txt", unlabelled(300))
    report = adapt(here / "toy.kb", [texts], tmp_path / "run", model=here / "model", sample=20)
    assert (report.texts, report.adapted, report.reason) == (300, True, "")
    assert report.names >= 100
    assert report.right.before == 0
    assert report.right.after / report.right.spans > 0.9
    assert report.loss[1] < report.loss[0]
    assert report.links[0] == 0 < report.links[1]
    with Linker.load(here / "toy.kb", tmp_path / "run" / MODEL, precision="fp32") as linker:
        assert [link.entity for link in linker.link("what is zorbla").links] == ["c0"]
    with Linker.load(here / "toy.kb", here / "model", precision="fp32") as linker:
        assert not linker.link("what is zorbla").links
    rows = rows_of(tmp_path / "run" / SAMPLE)
    assert len(rows) == 20
    assert {row["right"] for row in rows} == {""}
    assert all(f"[[{row['mention']}]]" in row["text"] for row in rows)
    assert json.loads((tmp_path / "run" / "report.json").read_bytes())["names"] == report.names


def test_a_killed_run_goes_on(here, tmp_path, monkeypatch):
    texts = write_texts(tmp_path / "texts.txt", unlabelled(200))
    evidence, calls = ElqBackend.evidence, []

    def counted(self, some, **options):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(some))
        return evidence(self, some, **options)

    run = {"kb": here / "toy.kb", "texts": [texts], "model": here / "model"}
    monkeypatch.setattr(ElqBackend, "evidence", counted)
    with pytest.raises(KeyboardInterrupt):
        adapt(folder=tmp_path / "run", **run)
    assert calls == [64, 64]
    calls.clear()
    (tmp_path / "run/evidence/000000.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr(ElqBackend, "evidence", lambda self, some, **o: calls.append(len(some)) or evidence(self, some))
    resumed = adapt(folder=tmp_path / "run", **run)
    assert calls == [64, 64, 8]
    calls.clear()
    assert adapt(folder=tmp_path / "run", **run) == resumed
    assert not calls
    assert adapt(folder=tmp_path / "other", **run) == resumed
    first, second = (LinkScorer.load(tmp_path / name / MODEL / "scorer.safetensors") for name in ("run", "other"))
    np.testing.assert_array_equal(first.leaf, second.leaf)
    np.testing.assert_array_equal(first.border, second.border)


def test_other_texts_or_another_kb_are_read_anew(here, tmp_path, capfd):
    texts = write_texts(tmp_path / "texts.txt", unlabelled(100))
    run = {"kb": here / "toy.kb", "texts": [texts], "folder": tmp_path / "run", "model": here / "model"}
    adapt(**run)
    write_texts(texts, unlabelled(150, seed=1))
    assert adapt(**run).texts == 150
    assert "starting over" in capfd.readouterr().err
    with KnowledgeBase.open(here / "toy.kb", writable=True) as kb:
        kb.add([Entity("old", "old cork", "a city", "city", 1, {"old cork": 2})])
    adapt(**run)
    assert "starting over" in capfd.readouterr().err


def test_too_few_names_keep_the_scorer(here, tmp_path):
    texts = write_texts(tmp_path / "texts.txt", ["was zorbla born", "who is the mayor of quimny"])
    report = adapt(here / "toy.kb", [texts], tmp_path / "run", model=here / "model")
    assert not report.adapted
    assert "only 2 unambiguous rare names" in report.reason
    kept = LinkScorer.load(tmp_path / "run" / MODEL / "scorer.safetensors")
    np.testing.assert_array_equal(kept.leaf, DOUBTING.leaf)


def test_texts_without_names_and_models_without_a_scorer_are_refused(toy, here, tmp_path):
    texts = write_texts(tmp_path / "texts.txt", ["nothing of that", "nor here"])
    with pytest.raises(InputError, match=r"no name of toy.kb is in the 2 texts; check that --kb and --texts belong"):
        adapt(here / "toy.kb", [texts], tmp_path / "run", model=here / "model")
    with pytest.raises(UsageError, match=r"no link scorer \(scorer.safetensors\).*choose --model elq"):
        adapt(here / "toy.kb", [texts], tmp_path / "run", model=toy / "model")
    with pytest.raises(UsageError, match="prior has no link scorer"):
        adapt(here / "toy.kb", [texts], tmp_path / "run", model="prior")


def test_texts_are_read_from_files_of_any_kind(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n\ntwo\n")
    (folder / "b.jsonl").write_text('{"body": "three"}\n{"other": 1}\n')
    (folder / "c.csv").write_text('n,body\n1,"four, and\nfive"\n2,\n', encoding="utf-8-sig")
    (folder / "d.tsv").write_text("body\tn\nsix\t1\n")
    (folder / "run").mkdir()
    (folder / "run" / "sample.csv").write_text("id,right\n1,\n")
    found = UnlabelledTexts([folder], field="body", besides=folder / "run")
    assert sorted(found.sample(100)) == ["four, and\nfive", "one", "six", "three", "two"]
    assert len(found.skipped) == 1
    assert len(found.files) == 4
    assert UnlabelledTexts([folder / "c.csv"], field="body", besides=tmp_path / "x").sample(9) == ["four, and\nfive"]


def test_a_sample_has_different_texts_and_is_always_the_same(tmp_path):
    path = write_texts(tmp_path / "t.txt", [f"text {number % 50}" for number in range(200)])
    some = UnlabelledTexts([path], besides=tmp_path / "run").sample(20)
    assert len(set(some)) == len(some) == 20
    assert some == sorted(some, key=lambda text: int(text.split()[1]))
    assert some == UnlabelledTexts([path], besides=tmp_path / "run").sample(20)
    assert len(UnlabelledTexts([path], besides=tmp_path / "run").sample(100)) == 50


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "n,body\n1,x\n", r"no column text \(it has n, body\); name yours with --field"),
        ("a.csv", 'text\n"open\n', "a quotation mark is not closed"),
        ("a.txt", "\n \n", "no text in the files of --texts"),
        ("a.jsonl", '{"body": 1}\n', "no text in the files.*a line without text"),
    ],
)
def test_texts_that_cannot_be_read_name_the_fix(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        UnlabelledTexts([tmp_path / name], besides=tmp_path / "run").sample(10)


def linked(scores):
    """One document for each score, with a link."""
    return [
        Document(f"in place {number}", (Link(3, 8, "place", f"e{number}", "a title", score),))
        for number, score in enumerate(scores)
    ]


def test_wilson_intervals():
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(1.0, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_links_are_sampled_from_all_scores():
    scores = np.linspace(0.11, 0.99, 300)
    sample = Sample.draw(linked(scores), 0.4, 50)
    assert len(sample.links) == 50
    assert sum(sample.sizes) == len(sample.scores) == 300
    assert np.bincount([link.stratum for link in sample.links]).tolist() == [10] * 5
    assert {link.stratum for link in sample.links if link.score <= 0.4} == {0}
    few = Sample.draw(linked([0.2, 0.5, 0.9]), 0.4, 50)
    assert sorted(link.score for link in few.links) == [0.2, 0.5, 0.9]


def test_marks_weigh_as_many_links_as_they_stand_for():
    scores = [0.2] * 100 + [0.6] * 30 + [0.7] * 30 + [0.8] * 30 + [0.9] * 310
    sample = Sample.draw(linked(scores), 0.4, 25)
    marks = {link.id: link.score > 0.85 for link in sample.links}
    done = fit_marks(DOUBTING, sample, marks)
    true = 310 / 400
    assert done.before.links == 400
    assert done.before.share == pytest.approx(true, abs=0.12)
    assert done.before.low < true < done.before.high
    assert done.after.links < done.before.links  # what was often wrong falls below the threshold
    assert done.after.share >= done.before.share
    equal = precision(np.array([True, False]), np.array([3.0, 1.0]), 9)
    assert (equal.share, equal.right, equal.marked, equal.links) == (0.75, 1, 2, 9)


def test_right_and_wrong_marks_move_scores():
    sample = Sample.draw(linked(np.linspace(0.11, 0.99, 200)), 0.4, 50)
    right = fit_marks(DOUBTING, sample, {link.id: True for link in sample.links})
    wrong = fit_marks(DOUBTING, sample, {link.id: False for link in sample.links})
    rows = np.zeros((1, len(FEATURES)), np.float32)
    assert wrong.scorer.probabilities(rows)[0] < DOUBTING.probabilities(rows)[0] < right.scorer.probabilities(rows)[0]
    assert right.after.links >= right.before.links
    assert right.before.share == 1
    assert wrong.before.share == 0


@pytest.fixture
def marked(tmp_path):
    """Write a sample, mark it with a function, and read the marks."""
    sample = Sample.draw(linked(np.linspace(0.2, 0.99, 40)), 0.4, 10)
    sample.save(tmp_path / "sample.csv", tmp_path / "sample.json")
    rows = rows_of(tmp_path / "sample.csv")

    def read(change, delimiter=","):
        for row in rows:
            change(row)
        with (tmp_path / "sample.csv").open("w", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
        return Sample.load(tmp_path / "sample.json").read_marks(tmp_path / "sample.csv")

    return read


@pytest.mark.parametrize(("mark", "right"), [("1", True), ("yes", True), ("Wrong ", False), ("0", False)])
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_marks_are_read(marked, mark, right, delimiter):
    marks = marked(lambda row: row.update(right=mark if int(row["id"]) % 2 else ""), delimiter)
    assert marks == dict.fromkeys([1, 3, 5, 7, 9], right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "no link in .*sample.csv is marked; write 1"),
        ({"right": "perhaps"}, "row 2: 'perhaps' is neither right nor wrong; write 1 or 0"),
        ({"right": "1", "entity": "Q1"}, "row 2 is not a row of this sample; change the column right only"),
        ({"right": "1", "mention": "else"}, "row 2 is not a row of this sample"),
        ({"right": "1", "id": "77"}, "row 2 is not a row of this sample"),
    ],
)
def test_marks_that_do_not_fit_name_the_fix(marked, change, message):
    with pytest.raises(InputError, match=message):
        marked(lambda row: row.update(change))


def test_marks_change_the_linker_and_are_not_overwritten(here, tmp_path):
    texts = write_texts(tmp_path / "texts.txt", unlabelled(200))
    run = {"kb": here / "toy.kb", "texts": [texts], "folder": tmp_path / "run", "model": here / "model"}
    with pytest.raises(InputError, match="is not the folder of an adapted linker; run wellread adapt with --texts"):
        apply_marks(tmp_path / "run", tmp_path / "run" / SAMPLE)
    adapt(**run)
    table = tmp_path / "run" / SAMPLE
    table.write_text(table.read_text("utf-8").replace(",\r\n", ",0\r\n").replace(",\n", ",0\n"), "utf-8")
    done = apply_marks(tmp_path / "run", table)
    scorer = LinkScorer.load(tmp_path / "run" / MODEL / "scorer.safetensors")
    assert (scorer.scale, scorer.shift, scorer.threshold) == (
        done.scorer.scale,
        done.scorer.shift,
        done.scorer.threshold,
    )
    assert done.before.share == 0
    assert done.scorer.shift < LinkScorer.load(tmp_path / "run/adapted.safetensors").shift
    again = apply_marks(tmp_path / "run", table)  # marks apply to the adapted scorer, not to one with marks
    assert again.scorer.shift == done.scorer.shift
    write_kb(tmp_path / "other.kb").close()
    with pytest.raises(UsageError, match=r"was adapted to another KB than .*other.kb; give that one"):
        apply_marks(tmp_path / "run", table, kb=tmp_path / "other.kb")
    apply_marks(tmp_path / "run", table, kb=here / "toy.kb")
    with pytest.raises(UsageError, match=r"has marks, which a new sample would replace; use them with --marks"):
        adapt(**run)
    adapt(**run, resume=False)


def corrections(path, *links):
    """A file of corrections: (text, name, entity or None)."""
    lines = []
    for text, name, entity in links:
        span = [text.index(name), text.index(name) + len(name)]
        lines.append(json.dumps({"text": text, "mentions": [[*span, entity, None]], "evaluate": [span]}))
    path.write_text("\n".join(lines))
    return path


def test_corrections_move_scores_and_threshold(here, tmp_path):
    knowing = stumps(("own_name", 0.5, -3.0, -0.5), threshold=0.45)  # names have a score of .38
    knowing.save(here / "model" / "scorer.safetensors")
    with Linker.load(here / "toy.kb", here / "model", precision="fp32") as linker:
        assert not linker.link("what is zorbla").links
    right = [(f"what is {name} {number}", name, f"c{number}") for number, name in enumerate(NAMES)]
    file = corrections(tmp_path / "right.jsonl", *right)
    run = {"kb": here / "toy.kb", "model": here / "model"}
    done = apply_corrections(tmp_path / "run", file, **run)
    assert (done.corrections, done.texts, done.right, done.found) == (14, 14, 14, 14)
    assert (done.trees, done.loss) == (0, None)
    assert "100 are needed" in done.reason
    with Linker.load(here / "toy.kb", tmp_path / "run" / MODEL, precision="fp32") as linker:
        (link,) = linker.link("what is zorbla").links
        assert (link.entity, link.score > 0.45) == ("c0", True)
    wrong = corrections(tmp_path / "wrong.jsonl", *((text, name, None) for text, name, _ in right))
    apply_corrections(tmp_path / "run", wrong, **run)  # the earlier ones do not count any more
    assert LinkScorer.load(tmp_path / "run" / MODEL / "scorer.safetensors").shift < knowing.shift


def test_many_corrections_give_the_scorer_more_trees(here, tmp_path):
    stumps(("mention_logit", 0.0, -1.0, -1.0)).save(here / "model" / "scorer.safetensors")  # .27, whatever it is
    texts = [f"{frame.format(name)} {place}" for place, (frame, name) in enumerate(product(FRAMES, NAMES))]
    names = [name for _, name in product(FRAMES, NAMES)]
    links = [(text, name, f"c{NAMES.index(name)}") for text, name in zip(texts, names, strict=True)]
    links += [(f"{number} the river", "river", None) for number in range(60)]
    file = corrections(tmp_path / "c.jsonl", *links)
    done = apply_corrections(tmp_path / "run", file, kb=here / "toy.kb", model=here / "model")
    assert (done.reason, done.corrections) == ("", 130)
    assert done.trees > 0
    assert done.loss[1] < done.loss[0]
    with Linker.load(here / "toy.kb", tmp_path / "run" / MODEL, precision="fp32") as linker:
        assert [link.entity for link in linker.link("was quimny born near the river").links] == ["c1"]


def test_corrections_that_do_not_fit_name_the_fix(here, tmp_path):
    run = {"kb": here / "toy.kb", "model": here / "model"}
    with pytest.raises(UsageError, match=r"no entity of .*other.jsonl is in .*toy.kb; give the knowledge base"):
        apply_corrections(tmp_path / "run", corrections(tmp_path / "other.jsonl", ("a b", "b", "Q9")), **run)
    with pytest.raises(InputError, match="the file has no corrections; make some on the page"):
        apply_corrections(tmp_path / "run", corrections(tmp_path / "none.jsonl"), **run)
    unseen = corrections(tmp_path / "unseen.jsonl", ("xqz is here", "xqz", "c0"))
    with pytest.raises(InputError, match="none of the 1 corrections is about a link"):
        apply_corrections(tmp_path / "run", unseen, **run)
    assert not (tmp_path / "run" / MODEL).exists()


def test_spreadsheets_take_no_cell_for_a_formula(tmp_path):
    text = "=1+1 is a sum"
    documents = [Document(text, (Link(0, 4, "=1+1", "@e", "-title", 0.9),))]
    sample = Sample.draw(documents, 0.4, 1)
    sample.save(tmp_path / "sample.csv", tmp_path / "sample.json")
    (row,) = rows_of(tmp_path / "sample.csv")
    assert [row[name][0] for name in ("mention", "title", "entity")] == ["'"] * 3
    table = (tmp_path / "sample.csv").read_text("utf-8").rstrip() + "1\n"
    (tmp_path / "sample.csv").write_text(table, "utf-8")
    assert sample.read_marks(tmp_path / "sample.csv") == {1: True}


def test_others_can_read_the_scorer(tmp_path):
    DOUBTING.save(tmp_path / "scorer.safetensors")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "scorer.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
