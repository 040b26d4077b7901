"""`wellread explain` shows what the model computes: in numbers, in pictures, and in the page."""

import base64
import hashlib
import json
import re
import shutil
import subprocess

import lxml.html
import numpy as np
import pytest
from transformers.utils import logging

from tests.infused_models import shake
from tests.map_data import byte_level, word_piece
from tests.toy_models import write_encoder
from wellread.correlation.counting import TableLimits, correlate
from wellread.data.corpus import Corpus
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import load_encoder
from wellread.errors import InputError, UsageError
from wellread.inference.explain import MOST_TOKENS, Explainer
from wellread.models.kam.inputs import EntityMap, FunctionMap, KamProvider
from wellread.models.kam.model import KamConfig
from wellread.plots.attention import (
    Seen,
    Term,
    by_words,
    draw_attention,
    draw_maps,
    draw_moved,
    draw_terms,
    save_pictures,
    units,
)
from wellread.plots.attention_page import explained_page
from wellread.text.tokenization import TextTokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a plain encoder of two layers and two heads, which tells two segments apart."""
    folder = tmp_path_factory.mktemp("explain") / "encoder"
    write_encoder(folder)
    word_piece().save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Words of a corpus so small that one can count it by hand."""
    folder = tmp_path_factory.mktemp("explain")
    lines = 3 * ["the mayor is old", "the mayor of york", "buy old shoes", "near york"]
    (folder / "lines.txt").write_text("\n".join(lines))
    correlate(
        Corpus.of_files([folder / "lines.txt"]), folder / "lines.pmi", limits=TableLimits(min_count=2, min_pair=2)
    )
    return str(folder / "lines.pmi")


def neighbours(tokenized):
    count = len(tokenized.words)
    return [[float(abs(one - other) == 1) for other in range(count)] for one in range(count)]


BESIDE = (FunctionMap(neighbours, name="beside"),)


def explainer(model, weight=0.0, *, alpha=0.2, maps=BESIDE, **options):
    names = tuple(each.name for each in maps)
    encoder = infuse(load_encoder(model), [KamConfig(maps=names, map_init=weight, alpha=alpha)])
    return Explainer(encoder, KamProvider(maps, TextTokenizer(word_piece())), **options)


def made_up(**changes):
    """Random attention of one layer with two heads over "buy abc" with the term "old"."""
    chance = np.random.default_rng(0)

    def shares(*shape):
        drawn = chance.random(shape, np.float32)
        return drawn / drawn.sum(-1, keepdims=True)

    seen = {
        "texts": ("buy abc",),
        "labels": ("[CLS]", "buy", "a", "·b", "·c", "[SEP]", "old"),
        "words": ("buy", "abc", "old"),
        "word_of": np.array([-1, 0, 1, 1, 1, -1, 2]),
        "segment_of": np.array([-1, 0, 0, 0, 0, -1, -1]),
        "without": shares(1, 2, 6, 6),
        "infused": shares(1, 2, 6, 7),
        "maps": {"entity": chance.random((7, 7), np.float32)},
        "terms": (Term("old", 0.5, (("buy", 0.75), ("abc", 0.25))),),
    }
    return Seen(**{**seen, **changes})


# what is asked of the model


def test_maps_without_weight_change_nothing_and_it_is_said(model):
    with Explainer.load(model, []) as plain:
        assert "maps have weight 0 and change nothing. See what maps would do with" in plain.notes[0]
    seen = explainer(model).explain("the mayor of york")
    np.testing.assert_allclose(seen.infused, seen.without, atol=1e-6)
    assert (seen.changes(0, "mean"), seen.best_layer) == ([], 0)
    assert draw_attention(seen, 1, "mean").axes[2].get_title(loc="left") == "no difference"
    strengths = lxml.html.fromstring(explained_page(seen)).xpath("//td/button/@style")
    assert set(strengths) == {"--v:0.000"}


def test_a_weight_on_a_map_adds_alpha_times_weight_to_the_scores(model):
    seen = explainer(model, 4.0, alpha=0.25).explain("the mayor of york")
    gained = np.log(seen.infused[0]) - np.log(seen.without[0])  # up to a constant of each row
    rows = gained - gained[:, :, :1]  # [CLS] has no part in a map
    np.testing.assert_allclose(rows, np.broadcast_to(4.0 * 0.25 * seen.maps["beside"], rows.shape), atol=1e-4)
    assert seen.maps["beside"][1, 2] == 1


def test_a_model_is_compared_with_itself_without_knowledge_or_without_its_kam(model):
    import torch

    learned = explainer(model, 4.0)
    shake(learned.encoder.infusions, 0.3)
    tokenized = learned.provider.segmenter.tokenize("the mayor of york")
    ids = torch.from_numpy(tokenized.ids)[None]
    with torch.no_grad():
        without_knowledge = learned.encoder(input_ids=ids, output_attentions=True).attentions
        switched_off = load_encoder(model)
        switched_off.set_attn_implementation("eager")
        plain = switched_off(input_ids=ids, output_attentions=True).attentions
    seen = [learned.explain("the mayor of york", without=without) for without in ("knowledge", "kam")]
    np.testing.assert_allclose(seen[0].without, torch.cat(without_knowledge).numpy(), atol=1e-6)
    np.testing.assert_allclose(seen[1].without, torch.cat(plain).numpy(), atol=1e-6)
    np.testing.assert_array_equal(seen[0].infused, seen[1].infused)
    assert np.abs(seen[0].without - seen[1].without).max() > 0.01


def test_pieces_have_labels_words_and_segments(model):
    seen = explainer(model).explain("buy ab", "near york")
    assert seen.labels == ("[CLS]", "buy", "a", "·b", "[SEP]", "near", "york", "[SEP]")
    assert seen.words == ("buy", "ab", "near", "york")
    assert seen.segment_of.tolist() == [-1, 0, 0, 0, -1, 1, 1, -1]
    assert seen.without.shape == seen.infused.shape == (2, 2, 8, 8)


def test_a_piece_of_blanks_can_be_seen(model):
    encoder = infuse(load_encoder(model), [KamConfig()])
    encoder.resize_token_embeddings(300, mean_resizing=False)
    seen = Explainer(encoder, KamProvider([], TextTokenizer(byte_level()))).explain("a b")
    assert by_words(seen).labels == ("<s>", "a", "␣", "b", "</s>")


def test_terms_are_read_beside_the_text_and_shown_with_their_relevance(model, table):
    with Explainer.load(model, ["correlation"], correlation=table, terms=4) as opened:
        seen = opened.explain("mayor of york")
    words = [term.word for term in seen.terms]
    assert words
    assert not set(words) & {"mayor", "of", "york"}
    first, scores = seen.terms[0], dict(seen.terms[0].by)
    assert first.relevance == pytest.approx(sum(scores.values()) / 3)
    assert seen.words[-len(words) :] == tuple(words)
    row, column = seen.labels.index("mayor"), by_words(seen).labels.index(words[0])
    assert by_words(seen).maps["correlation"][row, column] == pytest.approx(scores.get("mayor", 0.0))
    assert (seen.infused[:, :, :, seen.rows :] > 0).all()
    assert "Only the auxiliary terms have an effect" in seen.notes[0]


def test_a_table_alone_brings_its_map_and_terms(model, table):
    from wellread.inference.explain import USUAL_TERMS, _usual

    assert _usual({"correlation": table}) == ("entity", "phrase", "correlation")
    with Explainer.load(model, ["correlation"], correlation=table, map_weight=3.0) as opened:
        assert opened.provider.terms.tokens == USUAL_TERMS
        assert "weight that was set by hand, 3 in every layer" in opened.notes[0]


def test_what_a_saved_model_does_is_what_is_shown(model, tmp_path, table):
    config = KamConfig(maps=("correlation",), map_init=2.0)
    encoder = infuse(load_encoder(model), [config])
    logging.disable_progress_bar()
    encoder.save_pretrained(tmp_path / "run" / "model")
    logging.enable_progress_bar()
    shutil.copy(f"{model}/tokenizer.json", tmp_path / "run" / "model")
    with (
        Explainer.load(model, ["correlation"], correlation=table, terms=2, map_weight=2.0) as plain,
        Explainer.load(str(tmp_path / "run" / "model"), correlation=table, terms=2) as saved,
    ):
        wanted = plain.explain("the mayor").infused
        np.testing.assert_allclose(saved.explain("the mayor").infused, wanted, atol=1e-6)
        assert saved.notes == ()
    (tmp_path / "run" / "recipe.toml").touch()
    recipe = {"maps": {"maps": ["correlation"], "correlation": table, "terms": 2}}
    (tmp_path / "run" / "model" / "task.json").write_text(json.dumps({"recipe": recipe}))
    for folder in ("run", "run/model"):
        with Explainer.load(str(tmp_path / folder)) as run:
            np.testing.assert_allclose(run.explain("the mayor").infused, wanted, atol=1e-6)
    for wrong, options in (
        (r"omit --alpha and --map-weight", {"alpha": 0.1, "map_weight": 1.0}),
        (r"fuses the maps correlation, and no others; omit --maps", {"maps": ["entity"]}),
    ):
        with pytest.raises(UsageError, match=wrong):
            Explainer.load(str(tmp_path / "run"), **options)
    (tmp_path / "run" / "model" / "task.json").write_text("{}")
    with pytest.raises(InputError, match=r"task.json cannot be read: KeyError"):
        Explainer.load(str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("infusions", "message"),
    [
        ([], "was trained without KAM"),
        ([KamConfig(maps=("rhyme",))], "fuses the map 'rhyme', which wellread does not have"),
    ],
)
def test_a_model_that_has_nothing_to_show_says_so(model, tmp_path, infusions, message):
    logging.disable_progress_bar()
    infuse(load_encoder(model), infusions).save_pretrained(tmp_path / "model")
    logging.enable_progress_bar()
    shutil.copy(f"{model}/tokenizer.json", tmp_path / "model")
    with pytest.raises(UsageError, match=message):
        Explainer.load(str(tmp_path / "model"))


def test_a_model_that_has_learned_nothing_of_its_maps_says_so(model, tmp_path, table):
    logging.disable_progress_bar()
    infuse(load_encoder(model), [KamConfig(maps=("correlation",))]).save_pretrained(tmp_path / "model")
    logging.enable_progress_bar()
    shutil.copy(f"{model}/tokenizer.json", tmp_path / "model")
    with Explainer.load(str(tmp_path / "model"), correlation=table) as opened:
        assert "was not trained with its maps yet" in opened.notes[0]


def test_a_run_without_a_model_is_not_finished(tmp_path):
    (tmp_path / "recipe.toml").touch()
    with pytest.raises(InputError, match="has no model yet"):
        Explainer.load(str(tmp_path))


def test_other_maps_than_the_model_has_are_refused(model):
    encoder = infuse(load_encoder(model), [KamConfig(maps=("entity",))])
    with pytest.raises(UsageError, match="fuses the maps entity, the provider has beside"):
        Explainer(encoder, KamProvider([FunctionMap(neighbours, name="beside")], TextTokenizer(word_piece())))


# words instead of pieces


def test_neighbours_of_one_word_share_a_unit():
    assert units(np.array([-1, 0, 1, 1, -1, -1, 2, 2, 3])).tolist() == [0, 1, 2, 2, 3, 4, 5, 5, 6]


def test_a_word_attends_as_its_pieces_on_average_and_is_given_what_they_are_given():
    seen = made_up()
    words = by_words(seen)
    assert words.labels == ("[CLS]", "buy", "abc", "[SEP]", "old")
    np.testing.assert_allclose(words.infused.sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(words.infused[0, :, 1, 2], seen.infused[0, :, 1, 2:5].sum(-1), rtol=1e-6)
    np.testing.assert_allclose(words.without[0, :, 2, 1], seen.without[0, :, 2:5, 1].mean(-1), rtol=1e-6)
    np.testing.assert_allclose(words.maps["entity"][2, 4], seen.maps["entity"][2:5, 6].mean(), rtol=1e-6)
    assert by_words(words).labels == words.labels


def test_changes_are_the_largest_and_leave_special_pieces_out():
    seen = made_up()
    without, infused = seen.attention(0, 1)
    assert without[:, 6].tolist() == [0] * 6
    (first, *_), every = seen.changes(0, 1), seen.changes(0, 1, most=99)
    assert first.difference == pytest.approx(max((infused - without)[1:5, [1, 2, 3, 4, 6]].flat, key=abs))
    assert {one.row for one in every} == {1, 2, 3, 4}
    assert {one.column for one in every} == {1, 2, 3, 4, 6}


def test_the_share_that_moved_is_half_of_all_differences():
    seen = made_up()
    without, infused = seen.attention(0, "mean")
    assert seen.moved.shape == (1, 3)
    assert seen.moved[0, 0] == pytest.approx(np.abs(without - infused).sum(1).mean() / 2)


# pictures


def images(figure):
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_pictures_show_the_numbers():
    seen = made_up()
    without, infused = seen.attention(0, 0)
    for drawn, wanted in zip(
        images(draw_attention(seen, 0, 0)), (without[:, :6], infused, infused - without), strict=True
    ):
        np.testing.assert_array_equal(drawn, wanted)
    np.testing.assert_array_equal(images(draw_maps(seen))[0], seen.maps["entity"])
    np.testing.assert_allclose(images(draw_moved(seen))[0], 100 * seen.moved)
    assert [bar.get_width() for bar in draw_terms(seen.terms).axes[0].patches] == [0.5]


def test_pictures_are_written_whatever_the_words_are(tmp_path, monkeypatch):
    odd = ("[CLS]", "$x^2", "$", "東京", "{}", "[SEP]", "_a_$")
    seen = made_up(labels=odd, words=odd[1:4], texts=("$5 for $6_{",), terms=(Term("$a$", 0.0),))
    written = save_pictures(seen, tmp_path / "new", layer=0, head="mean")
    assert sorted(path.name for path in written if path.suffix == ".png") == (
        ["attention.png", "maps.png", "moved.png", "terms.png"]
    )
    assert all(path.stat().st_size > 1000 for path in written)
    monkeypatch.setattr("wellread.plots.attention.save", lambda figure, path: (path,))
    fewer = save_pictures(made_up(maps={}, terms=()), tmp_path / "few", layer=0, head=1)
    assert {path.name for path in fewer} == {"attention", "moved"}


# the page


def embedded(page):
    return json.loads(lxml.html.fromstring(page).get_element_by_id("seen").text)


def decoded(text, *shape):
    return np.frombuffer(base64.b64decode(text), "<u2").reshape(shape) / 65535


def test_all_layers_and_heads_are_in_the_page(model):
    seen = explainer(model, 3.0).explain("the mayor of york")
    page = explained_page(seen, layer=1, head=0)
    data = embedded(page)
    np.testing.assert_allclose(decoded(data["without"], *seen.without.shape), seen.without, atol=1e-5)
    np.testing.assert_allclose(decoded(data["infused"], *seen.infused.shape), seen.infused, atol=1e-5)
    np.testing.assert_allclose(decoded(data["maps"][0], 6, 6), seen.maps["beside"], atol=1e-5)
    assert (data["layer"], data["head"], data["own"], data["units"]) == (1, 0, 6, [0, 1, 2, 3, 4, 5])
    buttons = lxml.html.fromstring(page).xpath("//table[@role='grid']//button")
    assert {(one.get("data-layer"), one.get("data-head")) for one in buttons} == (
        {(str(layer), str(head)) for layer in range(2) for head in range(-1, 2)}
    )


def test_nothing_in_a_text_is_obeyed_and_nothing_is_fetched():
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(2)"><!--'
    labels = (evil, *made_up().labels[1:])
    seen = made_up(texts=(evil, evil), labels=labels, words=(evil, evil, evil), notes=(evil,), model=evil)
    seen = made_up(
        **{**vars(seen), "maps": {evil: made_up().maps["entity"]}, "terms": (Term(evil, 1.0, ((evil, 1.0),)),)}
    )
    page = explained_page(seen, title=evil)
    tree = lxml.html.fromstring(page)
    assert len(tree.xpath("//script")) == 2
    assert tree.xpath("//img | //*[@onerror] | //*[@src] | //link") == []
    assert embedded(page)["labels"][0] == evil
    assert "http:" not in page.replace("http-equiv", "")
    assert "https:" not in page


def test_only_the_page_s_own_script_may_run():
    page = explained_page(made_up())
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = lxml.html.fromstring(page).xpath("//meta[@http-equiv]/@content")
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_terms_notes_and_empty_maps_can_be_read_without_scripts():
    seen = made_up(notes=("Mind the gap.",), maps={"graph": np.zeros((7, 7), np.float32)})
    text = " ".join(lxml.html.fromstring(explained_page(seen)).text_content().split())
    assert "Mind the gap." in text
    assert "graphnothing found in this text" in text
    assert "old0.50buy 0.75 · abc 0.25" in text
    bare = explained_page(made_up(maps={}, terms=()))
    assert 'id="maps"' not in bare
    assert 'id="terms"' not in bare


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium to run the page in")
def test_a_browser_shows_what_the_page_holds(tmp_path):
    """The script's own grouping of pieces agrees with `by_words`."""
    seen = made_up()
    (tmp_path / "page.html").write_text(explained_page(seen, layer=0, head=1))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    done = subprocess.run(
        ["chromium", *options, f"file://{tmp_path}/page.html"], capture_output=True, text=True, check=False, timeout=60
    )
    page = lxml.html.fromstring(done.stdout)
    assert page.get_element_by_id("which").text == "layer 0, head 1"
    shown = by_words(seen)
    without, infused = shown.attention(0, 1)
    size = np.where(shown.special_mask, 0, np.abs(infused - without).sum(1))
    row = int(size.argmax())
    buttons = page.get_element_by_id("view1").findall("button")
    assert [button.text for button in buttons] == list(shown.labels)
    assert [float(button.get("title").removesuffix(" %")) for button in buttons] == (
        pytest.approx(100 * infused[row], abs=0.51)
    )
    assert [button.get("aria-pressed") for button in buttons].index("true") == row
    assert page.get_element_by_id("readout").text_content().startswith(f"{shown.labels[row]} changes most: ")


# the command line


def test_a_table_for_people(wellread, model, table):
    done = wellread("explain", "the mayor of york", "--model", model, "--maps", "correlation", "--correlation", table,
                    "--map-weight", 5, "--layer", 1, "--head", 0)  # fmt: skip
    assert done.code == 0, done.err
    assert "layer 1, head 0: knowledge moves" in done.out
    assert "auxiliary term" in done.out
    assert "set by hand, 5 in every layer" in done.err


def test_json_page_and_pictures(wellread, model, tmp_path, monkeypatch):
    monkeypatch.setattr("wellread.plots.attention.save", lambda figure, path: (path.with_suffix(".png"),))
    done = wellread("explain", "buy abc", "near york", "--model", model, "--maps", "none", "--json", "--to",
                    tmp_path / "page.html", "--png", tmp_path / "png")  # fmt: skip
    assert done.code == 0, done.err
    info = json.loads(done.out)
    assert info["rows"] == ["[CLS]", "buy", "abc", "[SEP]", "near", "york", "[SEP]"]
    assert info["without"] == info["with"]
    assert np.sum(info["with"]) == pytest.approx(7, abs=1e-3)
    assert (info["moved"], info["maps"], info["terms"], info["head"]) == (0, {}, [], "mean")
    assert embedded((tmp_path / "page.html").read_text())["by"] == "words"
    assert f"written to {tmp_path / 'png' / 'attention.png'}, {tmp_path / 'png' / 'moved.png'}" in done.err
    by_pieces = wellread("explain", "buy abc", "--model", model, "--maps", "none", "--by", "pieces", "--json")
    assert json.loads(by_pieces.out)["rows"] == ["[CLS]", "buy", "a", "·b", "·c", "[SEP]"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["  "], 3, "the text is empty"),
        (["buy", ""], 3, "text 2 of 2 is empty"),
        (["near " * 200], 3, f"has 202 tokens, more than the {MOST_TOKENS} that can be shown"),
        (["buy", "--layer", "2"], 2, "there is no layer 2; the model has 2, from 0 to 1"),
        (["buy", "--layer", "-1"], 2, "there is no layer -1"),
        (["buy", "--head", "2"], 2, "there is no head 2; the model has 2, from 0 to 1, and mean"),
        (["buy", "--head", "best"], 2, "there is no head best"),
        (
            ["buy", "--maps", "entity,moon"],
            2,
            "'moon' is not a map; choose from entity, phrase, correlation, graph, or none",
        ),
        (["buy", "--maps", "correlation"], 2, "need a table; make one with wellread correlate"),
        (["buy", "--terms", "4"], 2, "give it with --correlation"),
        (["buy", "--correlation", "nowhere.pmi"], 3, "there is no table of correlations in nowhere.pmi"),
        (["buy", "--map-weight", "nan"], 2, "nan is not a number"),
        (["buy", "--maps", "graph", "--kb", "nowhere.kb"], 5, "nowhere.kb"),
        (
            ["buy", "--maps", "entity", "--kb", "vital"],
            2,
            "the knowledge base vital is not used by the maps entity, with entities of spacy; give --linker to link",
        ),
        (["buy", "--maps", "phrase", "--linker"], 2, "the maps are phrase; add entity to --maps"),
    ],
)
def test_what_cannot_be_shown_is_one_line_that_names_the_fix(wellread, model, arguments, code, message):
    maps = [] if {"--maps", "--correlation", "--terms"} & set(arguments) else ["--maps", "none"]
    done = wellread("explain", *arguments, *maps, "--model", model)
    assert (done.code, done.out) == (code, ""), done.err
    assert message in done.err.splitlines()[-1]


def test_a_folder_that_is_no_model_is_refused(wellread, tmp_path):
    done = wellread("explain", "buy", "--model", tmp_path)
    assert (done.code, done.err.count("\n")) == (3, 1), done.err
    assert "has no encoder that transformers can load" in done.err


def test_entities_may_be_given_by_any_source(model):
    from tests.map_data import GivenMarks
    from wellread.mentions.annotators import Marks

    source = GivenMarks(lambda text: Marks(mentions=np.array([[4, 12]], np.int32), names=("city",)))
    seen = explainer(model, 5.0, maps=(EntityMap(source),)).explain("buy new york")
    assert by_words(seen).maps["entity"][2:4, 2:4].tolist() == [[1, 1], [1, 1]]
    new, york = (seen.labels.index(word) for word in ("new", "york"))
    assert (seen.infused[0, :, new, york] > seen.without[0, :, new, york]).all()
