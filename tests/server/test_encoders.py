"""Vectors and attention over HTTP: those that the rooms give."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from tests.knowbert_data import write_with_layer
from tests.servers import asking, engine_of, write_kbs
from tests.task_data import rte_recipe
from wellread.document import Document
from wellread.encoders.files import load_tokenizer
from wellread.encoders.load import load_encoder
from wellread.inference.embed import Embedder
from wellread.inference.embedder import load_embedder
from wellread.plots import curves as plots
from wellread.server.encoders import EmbedOptions, ServedEncoder
from wellread.training.schedule import Schedule
from wellread.training.task import train_task

TEXTS = ["who is the mayor of cork", "dora", ""]


@pytest.fixture(scope="module")
def client(encoder, tmp_path_factory):
    with engine_of(write_kbs(tmp_path_factory.mktemp("kbs")), encoder=encoder) as engine, asking(engine) as client:
        yield client


@pytest.fixture(scope="module")
def embedder(encoder):
    return Embedder.build(load_encoder(encoder), load_tokenizer(encoder))


@pytest.mark.parametrize("of", ["texts", "words", "pieces"])
def test_vectors_are_those_of_the_embedder(client, embedder, of):
    info = client.post("/embed", json={"texts": TEXTS, "of": of, "unit": True}).json()
    assert (info["dim"], len(info["texts"])) == (embedder.dim, 3)
    for text, rows in zip(TEXTS, info["texts"], strict=True):
        offline = list(embedder.embed([Document(text)], of=of, unit=True))
        assert [row["text"] for row in rows] == [name for some in offline for name in some.names]
        assert [(row["start"], row["end"]) for row in rows] == [
            tuple(at) for some in offline for at in some.spans.tolist()
        ]
        if rows:
            found = np.array([row["vector"] for row in rows])
            np.testing.assert_allclose(found, np.concatenate([some.vectors for some in offline]), atol=1e-5)


def test_clients_that_are_read_together_get_their_own(encoder):
    reading = ServedEncoder("tiny", encoder)
    first, second = reading.embed(EmbedOptions("tiny", "words"), [["cork dora"], ["", "mayor"]])
    assert [rows.names for rows in first] == [["cork", "dora"]]
    assert [rows.names for rows in second] == [[], ["mayor"]]


@pytest.fixture(scope="module")
def several(encoder, plain_encoder, tmp_path_factory):
    """A client of a server with a plain encoder, a wider one, one with a knowledge layer, a trained task, and none."""
    home = tmp_path_factory.mktemp("several")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wellread.assets.home", lambda: home)
        for name in ("draw_curves", "save"):
            patch.setattr(plots, name, lambda *args, **options: None)
        infused = write_with_layer(home, encoder)
        train_task(rte_recipe(home, encoder, infusion="none", schedule=Schedule(1)), home / "run")
        (home / "empty").mkdir()
        more = {"wide": plain_encoder, "layer": infused, "run": str(home / "run"), "none": str(home / "empty")}
        with engine_of(write_kbs(home), encoder=encoder, more=more) as engine, asking(engine) as client:
            yield client, more


def test_encoders_are_those_that_were_named_and_get_the_inputs_they_need(several):
    client, places = several
    assert [one["name"] for one in client.get("/health").json()["encoders"]] == ["usual", *places]
    found = {}
    for name in ("usual", "wide", "layer", "run"):
        info = client.post("/embed", json={"text": "mayor of cork", "of": "words", "model": name}).json()
        found[name] = np.array([row["vector"] for row in info["texts"][0]])
        assert (info["model"], info["dim"]) == (name, 32 if name == "wide" else 16)
    assert np.abs(found["layer"] - found["usual"]).max() > 1e-3
    with ExitStack() as stack:
        for name in ("wide", "layer", "run"):
            (rows,) = load_embedder(places[name], stack).embed([Document("mayor of cork")], of="words")
            np.testing.assert_allclose(found[name], rows.vectors, atol=1e-5)


def test_an_encoder_is_chosen_by_name_and_never_by_path(several):
    client, places = several
    for wrong in ("moon", places["wide"], "../wide"):
        for route in ("/embed", "/explain"):
            answer = client.post(route, json={"text": "cork", "model": wrong})
            assert (answer.status_code, "choose usual, wide" in answer.json()["error"]) == (422, True)


def test_where_a_broken_encoder_lies_is_for_the_log(several, caplog):
    client, places = several
    for route in ("/embed", "/explain"):
        answer = client.post(route, json={"text": "cork", "model": "none"})
        assert (answer.status_code, places["none"] in answer.text) == (501, False)
        assert "see the server's log" in answer.json()["error"]
    assert [record.fields["encoder"] for record in caplog.records if hasattr(record, "fields")].count("none") == 2


def test_words_of_long_texts_are_too_many(client):
    answer = client.post("/embed", json={"text": "a " * 10_001, "of": "words"})
    assert (answer.status_code, "limited to 20,000 characters" in answer.json()["error"]) == (422, True)


def test_attention_is_returned_for_a_layer_and_head(client):
    info = client.post("/explain", json={"text": "who wrote to dora", "maps": [], "layer": 1, "head": 0}).json()
    assert (info["layers"], info["heads"], info["layer"], info["head"]) == (2, 2, 1, 0)
    assert info["rows"] == info["columns"] == ["[CLS]", "who", "wrote", "to", "dora", "[SEP]"]
    np.testing.assert_allclose(np.array(info["without"]).sum(1), 1, atol=1e-3)
    assert np.array(info["moved"]).shape == (2, 3)
    pieces = client.post("/explain", json={"text": "dorax", "maps": [], "by": "pieces"}).json()
    assert len(pieces["rows"]) > 3


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"text": "a", "layer": 2}, "there is no layer 2"),
        ({"text": "a", "head": 2}, "there is no head 2"),
        ({"text": "a", "head": -1}, "there is no head -1"),
        ({"text": " "}, "the text is empty"),
        ({"text": "mayor " * 300}, "give a shorter text"),
        ({"text": "a", "maps": ["moon"]}, "maps"),
    ],
)
def test_requests_that_cannot_be_explained_are_refused(client, requested, message):
    answer = client.post("/explain", json={"maps": [], **requested})
    assert (answer.status_code, message in answer.json()["error"]) == (422, True)


def test_a_map_that_is_named_twice_is_provided_once(client, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        "wellread.inference.explain.Explainer.load", lambda *given, **more: loaded.append(given) or 1 / 0
    )
    client.post("/explain", json={"text": "cork", "maps": ["entity", "entity"]})
    assert loaded[0][1] == ("entity",)


def test_the_view_of_a_form_runs_no_script_but_its_own(client):
    page = client.post("/explain/page", data={"text": "<script>alert(1)</script>"})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "sandbox allow-scripts" in page.headers["content-security-policy"]
    assert "<script>alert" not in page.text
    wrong = client.post("/explain/page", data={"text": "a", "map_weight": "<b>"})
    assert (wrong.status_code, "<b>" in wrong.text) == (422, False)
    assert client.post("/explain/page", content="&".join(f"a{n}=1" for n in range(99))).status_code == 422


def test_a_model_that_has_learned_its_maps_is_distinguished(tmp_path, encoder):
    assert ServedEncoder("tiny", encoder).plain
    assert ServedEncoder("minilm", "minilm").plain
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"infusions": [{"kind": "kam"}]}))
    assert not ServedEncoder("run", str(tmp_path)).plain
