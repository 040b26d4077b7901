"""The linkers of a server: what they are called, LUKE's among them, and what linkers to parts of a KB cost."""

import pytest

from tests.servers import asking, engine_of
from tests.toy_models import ENTITIES, tokenizer, write_kb
from wellread.cli.serve import _models
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder, silence
from wellread.errors import UsageError
from wellread.linking.linker import Linker
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.server import served_kb as served_kbs
from wellread.server.registry import LinkerRegistry
from wellread.server.served_kb import LinkJob, name_models


@pytest.fixture(scope="module")
def home(tmp_path_factory, encoder):
    """A folder with a KB and `guesser/model`, a LUKE whose weights are drawn."""
    home = tmp_path_factory.mktemp("luke")
    write_kb(home / "toy.kb").close()
    vocabulary = EntityVocabulary.of_ids(entity.id for entity in ENTITIES)
    model = infuse(load_encoder(encoder), [LukeConfig(entities=len(vocabulary), dim=8, predicts=True)])
    folder = home / "guesser" / "model"
    with silence():
        model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    vocabulary.save(folder)
    return home


@pytest.fixture(scope="module")
def registry(home):
    made = LinkerRegistry.load([home / "toy.kb"], {"toy": [str(home / "guesser" / "model"), "prior"]})
    yield made
    made.close()


def test_a_luke_is_served(home):
    with engine_of([home / "toy.kb"], [str(home / "guesser" / "model")]) as engine, asking(engine) as client:
        response = client.get("/health")
        assert response.status_code == 200
        (kb,) = response.json()["kbs"]
        assert (kb["models"], kb["overlaps"]) == (["guesser"], {"guesser": "best"})
        answer = client.post("/link", json={"text": "who is the mayor of cork", "model": "guesser"})
        assert [link["entity"] for link in answer.json()["documents"][0]["links"]] == ["p2"]


def test_linkers_to_parts_share_the_model_of_a_luke(registry, monkeypatch):
    monkeypatch.setattr(Linker, "load", None)  # nothing is loaded
    text = "mercury and cork"
    (answer,) = registry.link(registry.key("toy", among=["god"]), [LinkJob((text,))])
    assert [link.entity for link in answer.documents[0].links] == ["god"]
    (answer,) = registry.link(registry.key("toy", kinds=["city"]), [LinkJob((text,))])
    assert [link.entity for link in answer.documents[0].links] == ["p2"]
    whole = registry.served_kbs["toy"].linkers["guesser"]
    for part in registry._subsets.values():
        assert part.backend.encoder is whole.backend.encoder
        assert registry._linker_locks[part] is registry._linker_locks[whole]  # who shares it waits


def test_of_linkers_that_are_whole_models_one_is_kept(registry, monkeypatch):
    monkeypatch.setattr("wellread.server.registry.shares_model", lambda linker: False)
    for id in ("god", "planet", "p2"):
        registry.link(registry.key("toy", among=[id]), [LinkJob(("mercury",))])
    assert [key[0].among for key in registry._subsets] == [("p2",)]


def test_linkers_are_called_by_their_folders_or_as_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    given = ["prior", "runs/one/model", "runs/two/model", "mine=runs/one/model", "a=b", "runs/c=d/model"]
    assert name_models(given) == {
        "prior": "prior",
        "one": "runs/one/model",
        "two": "runs/two/model",
        "mine": "runs/one/model",
        "a=b": "a=b",
        "c=d": "runs/c=d/model",
    }
    for wrong, message in (
        (
            ["a/x/model", "b/x/model"],
            "two linkers have the name x; give one of them another name: --model NAME=b/x/model",
        ),
        (["prior", "prior"], "two linkers have the name prior"),
        (["mine="], "give NAME=MODEL"),
        (["auto=prior"], "give another name"),
    ):
        with pytest.raises(UsageError, match=message):
            name_models(wrong)


def test_a_name_may_follow_that_of_a_knowledge_base():
    models = _models(["vital=mine=runs/one/model", "other=prior"], ["vital", "wordnet"])
    assert models == {"vital": ["mine=runs/one/model"], "wordnet": ["other=prior"]}


def test_names_are_checked_before_anything_is_loaded(home, monkeypatch):
    monkeypatch.setattr(served_kbs, "open_served_kb", None)
    with pytest.raises(UsageError, match="two linkers have the name prior"):
        LinkerRegistry.load([home / "toy.kb"], {"toy": ["prior", "prior"]})


@pytest.mark.parametrize("models", [["prior", "auto"], ["auto", "prior"]])
def test_the_usual_linker_may_stand_anywhere(home, monkeypatch, models):
    monkeypatch.setattr("wellread.linking.linker._default_model", lambda kb: str(home / "guesser" / "model"))
    registry = LinkerRegistry.load([home / "toy.kb"], {"toy": models})
    assert list(registry.served_kbs["toy"].linkers) == ["luke" if model == "auto" else model for model in models]
    registry.close()
    monkeypatch.setattr("wellread.linking.linker._default_model", lambda kb: "prior")
    with pytest.raises(UsageError, match="two linkers have the name prior"):
        LinkerRegistry.load([home / "toy.kb"], {"toy": models})
    registry = LinkerRegistry.load([home / "toy.kb"])
    assert list(registry.served_kbs["toy"].linkers) == ["prior"]
    registry.close()


@pytest.mark.parametrize(("text", "characters"), [(100_000, 400_000), (300_000, 1_200_000), (10, 400_000)])
def test_a_longer_text_may_be_sent_where_longer_texts_are_allowed(home, monkeypatch, wellread, text, characters):
    seen = []
    monkeypatch.setattr("wellread.cli.serve._serve", lambda kbs, models, settings, *more: seen.append(settings.limits))
    said = wellread("serve", "--kb", home / "toy.kb", "--port", "0", "--max-text", text)
    assert said.code == 0
    assert [(one.text, one.characters) for one in seen] == [(text, characters)]
