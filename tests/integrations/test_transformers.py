"""transformers after `import wellread`: a pipeline that links, and encoders with infusions by AutoModel."""

import json
import subprocess
import sys

import pytest
from transformers import AutoConfig, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from tests.kb.conftest import CITIES, build_kb
from wellread import Linker
from wellread.errors import UsageError
from wellread.integrations.transformers import hooks as arrivals
from wellread.integrations.transformers.pipeline import LinkerFolder

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
def test_nil_is_shown_only_where_asked_for(toy, settings, expected):
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
def test_what_is_no_text_is_refused_at_once(link, odd):
    with pytest.raises(UsageError, match=f"^cannot link {type(odd).__name__}; give a text, a list of texts or a"):
        link(odd)


@pytest.mark.parametrize("odd", [5, None, b"Paris", {"text": "Paris"}, ["Paris"]])
def test_what_is_no_text_among_texts_is_refused_too(link, odd):
    message = f"^link_many was given {type(odd).__name__} among its texts; give each as a str$"
    with pytest.raises(UsageError, match=message):
        link([TEXT, odd])
    with pytest.raises(UsageError, match=message):
        next(link(iter([TEXT, odd])))


@pytest.mark.parametrize("how", [{"threshold": 7}, {"threshold": "high"}, {"top_k": -1}, {"top_k": 1.5}])
def test_settings_of_a_call_that_cannot_be_are_told(link, how):
    with pytest.raises(UsageError, match=r"is no probability; give one from 0 to 1|is no number of candidates; give 0"):
        link(TEXT, **how)


def test_a_call_says_how_sure_and_how_many(link, kb):
    assert entities(link(TEXT, threshold=0.99)) == ["Q937"]
    assert [len(found["candidates"]) for found in link(TEXT, top_k=1)] == [1, 1]
    with pytest.raises(UsageError, match="top is not known; a call takes threshold and top_k"):
        link(TEXT, top=1)
    strict = pipeline("entity-linking", kb=kb, linker="prior", threshold=0.99, top_k=0)
    assert [(found["entity"], found["candidates"]) for found in strict(TEXT)] == [("Q937", [])]
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
    with pytest.raises(UsageError, match="lie in files already"):
        by_folder.save_pretrained(toy / "nowhere")
    by_folder.linker.close()


def test_without_a_model_the_linker_of_the_knowledge_base_is_chosen(monkeypatch):
    asked = []
    monkeypatch.setattr(Linker, "load", lambda *given, **more: asked.append((given, more)))
    pipeline("entity-linking")
    pipeline("entity-linking", kb="wordnet", trust=2.0)
    assert asked == [(("vital", "auto"), {}), (("wordnet", "auto"), {"trust": 2.0})]
    assert "the linker that wellread chooses" in str(LinkerFolder("auto"))


@pytest.mark.slow
def test_transformers_is_told_in_either_order_and_not_before(tmp_path, encoder):
    from wellread.encoders.infusion.infuse import infuse
    from wellread.encoders.load import load_encoder
    from wellread.models.kam.model import KamConfig

    infuse(load_encoder(encoder), [KamConfig()]).save_pretrained(tmp_path / "infused")
    first, then = "import wellread", "from transformers import AutoModel, pipeline"
    code = f"""
{{}}
print([name for name in ("torch", "numpy", "wellread.encoders.infusion.infuse") if "{{}}" and name in sys.modules])
{{}}
from transformers.pipelines import PIPELINE_REGISTRY
print("entity-linking" in PIPELINE_REGISTRY.supported_tasks, "wellread.encoders.infusion.infuse" in sys.modules)
print(type(AutoModel.from_pretrained({str(tmp_path / "infused")!r})).__name__)
"""
    for here in (code.format(first, "x", then), code.format(then, "", first)):
        run = [sys.executable, "-c", f"import sys\n{here}"]
        done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=250)
        assert done.stdout.splitlines() == ["[]", "True False", "InfusedBertModel"]


def test_what_nobody_knows_is_still_an_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "infused-abacus"}')
    with pytest.raises(ValueError, match="infused-abacus"):
        AutoConfig.from_pretrained(tmp_path)


def test_there_is_one_greeter():
    arrivals.register()
    assert sum(type(finder).__name__ == "_ImportHook" for finder in sys.meta_path) == 1
