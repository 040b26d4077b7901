"""transformers after `import wellread.integrations.transformers`: the pipeline, and infused encoders by AutoModel."""

import json
import subprocess
import sys

import pytest
from transformers import AutoConfig, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from tests.kb.conftest import CITIES, build_kb
from wellread import Linker
from wellread.errors import UsageError
from wellread.integrations.transformers import LinkerFolder, register

TEXT = "Einstein left Paris."


@pytest.fixture
def kb(tmp_path):
    build_kb(tmp_path / "cities.kb", CITIES)
    return tmp_path / "cities.kb"


@pytest.fixture
def link(kb):
    made = pipeline("entity-linking", kb=kb, linker="prior")
    yield made
    made.linker.close()


def entities(links):
    return [link["entity"] for link in links]


def test_a_pipeline_links_as_the_linker_does(link, kb):
    found = link(TEXT)
    assert entities(found) == ["Q937", "Q90"]
    with Linker.load(kb, "prior") as linker:
        expected = linker.link(TEXT).to_dict()["links"][1]
    expected["word"], expected["candidates"] = expected.pop("text"), list(expected["candidates"])
    assert found[1] == expected
    assert len(found[1]["candidates"]) == 2


@pytest.mark.parametrize(("settings", "expected"), [({}, []), ({"nil": True}, [None])])
def test_nil_is_shown_only_if_requested(toy, settings, expected):
    link = pipeline("entity-linking", kb=toy / "toy.kb", linker=toy / "model", precision="fp32", **settings)
    assert entities(link("mayor of planet")) == entities(link("mayor of planet", threshold=0.3)) == expected
    link.linker.close()


def test_lists_give_lists_and_streams_give_streams(link):
    texts = [TEXT, "", "Paris"]
    assert [entities(found) for found in link(texts)] == [["Q937", "Q90"], [], ["Q90"]]
    assert link([]) == []
    endless = link(TEXT for _ in iter(int, 1))
    assert entities(next(endless)) == ["Q937", "Q90"]
    rows = [{"body": text} for text in texts]
    assert [entities(found) for found in link(KeyDataset(rows, "body"), batch_size=2)] == [["Q937", "Q90"], [], ["Q90"]]


@pytest.mark.parametrize("odd", [5, None, b"Paris", {"text": "Paris"}, True])
def test_an_input_that_is_not_text_is_refused_at_once(link, odd):
    with pytest.raises(UsageError, match=f"^cannot link {type(odd).__name__}; give a text, a list of texts or a"):
        link(odd)


@pytest.mark.parametrize("odd", [5, None, b"Paris", {"text": "Paris"}, ["Paris"]])
def test_an_item_that_is_not_text_is_refused(link, odd):
    message = f"^link_many was given {type(odd).__name__} among its texts; give each as a str$"
    with pytest.raises(UsageError, match=message):
        link([TEXT, odd])
    with pytest.raises(UsageError, match=message):
        next(link(iter([TEXT, odd])))


@pytest.mark.parametrize("how", [{"threshold": 7}, {"threshold": "high"}, {"top_k": -1}, {"top_k": 1.5}])
def test_impossible_options_of_a_call_are_refused(link, how):
    with pytest.raises(
        UsageError, match=r"is not a probability; give one from 0 to 1|is not a number of candidates; give 0"
    ):
        link(TEXT, **how)


def test_a_call_takes_threshold_and_top_k(link, kb):
    assert entities(link(TEXT, threshold=0.5)) == ["Q90"]
    assert [len(found["candidates"]) for found in link(TEXT, top_k=1)] == [1, 1]
    with pytest.raises(UsageError, match="unknown option top; a call takes threshold and top_k"):
        link(TEXT, top=1)
    strict = pipeline("entity-linking", kb=kb, linker="prior", threshold=0.5, top_k=0)
    assert [(found["entity"], found["candidates"]) for found in strict(TEXT)] == [("Q90", [])]
    assert entities(strict(TEXT, threshold=0.0)) == ["Q937", "Q90"]
    strict.linker.close()


def test_a_folder_or_a_linker_may_be_the_model(toy):
    text = "who is the mayor of cork"
    assert json.loads((toy / "model" / "config.json").read_text())["model_type"] == "wellread-elq"
    assert AutoConfig.from_pretrained(toy / "model").model_type == "wellread-elq"
    by_folder = pipeline("entity-linking", model=str(toy / "model"), kb=toy / "toy.kb", precision="fp32")
    by_linker = pipeline("entity-linking", model=by_folder.linker)
    expected = by_folder.linker.link(text).links
    assert entities(by_folder(text)) == entities(by_linker(text)) == [link.entity for link in expected] == ["p2"]
    assert len(by_folder(text, threshold=0.0)) > 1
    with pytest.raises(UsageError, match="has its knowledge base already"):
        pipeline("entity-linking", model=by_folder.linker, kb=toy / "toy.kb")
    with pytest.raises(UsageError, match="are files already"):
        by_folder.save_pretrained(toy / "nowhere")
    by_folder.linker.close()


def test_without_a_model_the_linker_of_the_knowledge_base_is_chosen(monkeypatch):
    requested = []
    monkeypatch.setattr(Linker, "load", lambda *given, **more: requested.append((given, more)))
    pipeline("entity-linking")
    pipeline("entity-linking", kb="wordnet", trust=2.0)
    assert requested == [(("vital", "auto"), {}), (("wordnet", "auto"), {"trust": 2.0})]
    assert "the linker that wellread chooses" in str(LinkerFolder("auto"))


CHECK = """
from transformers import AutoConfig, AutoModel
from transformers.pipelines import PIPELINE_REGISTRY
print("entity-linking" in PIPELINE_REGISTRY.supported_tasks)
try:
    print(type(AutoModel.from_pretrained({folder!r})).__name__)
except ValueError as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_registration_is_explicit(tmp_path, encoder):
    from wellread import KamConfig, infuse, load_encoder

    infuse(load_encoder(encoder), [KamConfig()]).save_pretrained(tmp_path / "infused")
    check = CHECK.format(folder=str(tmp_path / "infused"))
    registered = ["True", "InfusedBertModel"]
    for first, expected in (
        ("import wellread", ["False", "ValueError"]),
        ("import wellread.integrations.transformers", registered),
        ("import transformers.pipelines, wellread.integrations.transformers", registered),
    ):
        run = [sys.executable, "-c", f"{first}\n{check}"]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=250)
        assert done.stdout.splitlines() == expected


def test_importing_wellread_loads_and_hooks_nothing():
    code = """
import sys
before = list(sys.meta_path)
import wellread
print([name for name in ("torch", "numpy", "transformers", "wellread.encoders") if name in sys.modules])
print(sys.meta_path == before, set(wellread.__all__) <= set(dir(wellread)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "True True"]


def test_every_public_name_can_be_imported():
    import wellread

    assert all(getattr(wellread, name) is not None for name in wellread.__all__)
    with pytest.raises(AttributeError, match="module 'wellread' has no attribute 'Abacus'"):
        wellread.Abacus  # noqa: B018


def test_an_unknown_model_type_is_still_an_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "infused-abacus"}')
    with pytest.raises(ValueError, match="infused-abacus"):
        AutoConfig.from_pretrained(tmp_path)


def test_registering_twice_changes_nothing():
    from transformers.pipelines import PIPELINE_REGISTRY

    before = dict(PIPELINE_REGISTRY.supported_tasks)
    register()
    assert before == PIPELINE_REGISTRY.supported_tasks
