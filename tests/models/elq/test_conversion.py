"""The authors' ELQ checkpoint becomes a linker with the same scores: to 1e-5, against plain loops."""

import json
import math
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

from wellread import Linker
from wellread.encoders.files import load_tokenizer
from wellread.encoders.packing import Packing
from wellread.errors import InputError, UsageError
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.conversion import convert_elq
from wellread.models.elq.entity_encoder import EntityTower
from wellread.models.elq.linker import window_tokenizer_of
from wellread.models.elq.model import Candidates, Elq

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = "who what is the of in city river mayor ohio paris texas france capital".split()
VOCAB = ["[PAD]", "[unused0]", "[unused1]", "[unused2]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB += [*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "?", "[", "]"]
IDS = {piece: number for number, piece in enumerate(VOCAB)}
PARAMS = {
    "bert_model": "bert-large-uncased",
    "mention_aggregation_type": "all_avg",
    "mention_scoring_method": "qa_linear",
    "max_mention_length": 3,
    "max_context_length": 64,
    "max_cand_length": 8,
    "add_linear": False,
    "lowercase": True,
    "out_dim": 1,
    "pull_from_layer": -1,
    "no_mention_bounds": True,
    "learning_rate": 1e-5,
    "path_to_model": None,
}
ENTITIES = [
    ("Paris", "the capital of France"),
    ("Paris Texas", "city in texas. the river is in the city of the mayor"),
    ("Ohio", ""),
    ("Zoé", "mayor of Ohio"),
]
TEXTS = ["who is the mayor of Paris?", "Ohio", "what is in the river of paris texas zoo"]


# The authors' model, from its formulae


def make_bert(seed, width=128, heads=2):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCAB), hidden_size=width, num_hidden_layers=2, num_attention_heads=heads, intermediate_size=48
    )
    config.max_position_embeddings, config.initializer_range = 96, 0.1
    return BertModel(config).eval()


class Reference:
    """Scores as the authors compute them: padded batches, loops over spans."""

    def __init__(self, heads=2, width=128):
        self.text, self.entity = make_bert(1, width, heads), make_bert(2, width, heads)
        self.head = torch.nn.Linear(width, 3)

    def state(self, prefix=""):
        parts = {
            "context_encoder.bert_model.": self.text,
            "cand_encoder.bert_model.": self.entity,
            "classification_heads.mention_scores.bound_classifier.": self.head,
        }
        return {
            f"{prefix}{begin}{name}": weight.clone()
            for begin, module in parts.items()
            for name, weight in module.state_dict().items()
        }

    @torch.no_grad()
    def candidates(self, rows):
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return self.entity(ids, token_type_ids=ids * 0, attention_mask=(ids != 0).long()).last_hidden_state[:, 0]

    @torch.no_grad()
    def mentions(self, rows, longest_gap):
        """{(text, first, last): (logit, vector)}, both ends inclusive."""
        width = max(map(len, rows)) + 3  # theirs are padded to max_context_length
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        states = self.text(ids, token_type_ids=ids * 0, attention_mask=(ids != 0).long()).last_hidden_state
        logits = self.head(states)
        found = {}
        for text, row in enumerate(rows):
            for first in range(1, len(row) - 1):
                for last in range(first, len(row) - 1):
                    if last - first <= longest_gap:
                        inside = sum(float(logits[text, piece, 2]) for piece in range(first, last + 1))
                        logit = float(logits[text, first, 0]) + float(logits[text, last, 1]) + inside
                        found[text, first, last] = (logit, states[text, first : last + 1].mean(0))
        return found


def pieces_of(text):
    """WordPiece by hand: words of the vocabulary, else letters; accents and capitals are gone."""
    plain = text.lower().replace("é", "e").replace("?", " ?").replace(".", " .")
    pieces = []
    for word in plain.split():
        while word:
            end = next(end for end in range(len(word), 0, -1) if begin_of(word, pieces) + word[:end] in IDS)
            pieces.append(begin_of(word, pieces) + word[:end])
            word = Rest(word[end:])
    return [str(piece) for piece in pieces]


class Rest(str):
    """The rest of a word whose first token was taken."""


def begin_of(word, pieces):
    return "##" if isinstance(word, Rest) else ""


def text_ids(text):
    return [IDS["[CLS]"], *(IDS[piece] for piece in pieces_of(text)), IDS["[SEP]"]]


def entity_ids(title, description, longest=PARAMS["max_cand_length"]):
    pieces = [*pieces_of(title), "[unused2]", *pieces_of(description)][: longest - 2]
    return [IDS["[CLS]"], *(IDS[piece] for piece in pieces), IDS["[SEP]"]]


# Files


@pytest.fixture(scope="module")
def reference():
    return Reference()


@pytest.fixture(scope="module")
def files(tmp_path_factory, reference):
    folder = tmp_path_factory.mktemp("theirs")
    torch.save(reference.state(), folder / "elq.bin")
    (folder / "params.txt").write_text(json.dumps(PARAMS))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def converted(files, tmp_path_factory):
    """Converted in one place and moved to another."""
    first, last = (tmp_path_factory.mktemp(name) / "linker" for name in ("first", "last"))
    convert_elq(files / "elq.bin", files / "params.txt", first, vocab=files / "vocab.txt")
    shutil.move(first, last)
    return last


@torch.no_grad()
def ours(folder):
    """Our {(text, first, last): (logit, vector)}."""
    model = Elq.from_pretrained(folder).eval()
    codes = load_tokenizer(model.config.encoder).encode_batch(TEXTS)
    packing = Packing.of([len(code.ids) for code in codes])
    states = model.states(torch.tensor([id for code in codes for id in code.ids]), packing)
    scores = model.mention_scores(states)
    found = {}
    for text, code in enumerate(codes):
        start = int(packing.starts[text])
        for first in range(1, len(code.ids) - 1):
            for width in range(min(scores.shape[1], len(code.ids) - 1 - first)):
                place = torch.tensor([start + first])
                vector = model.mention_vectors(states, place, place + width, packing)[0]
                found[text, first, first + width] = (float(scores[start + first, width]), vector)
    return model, found


def assert_the_same(folder, reference):
    tower = EntityTower.load(ElqConfig.read(folder))
    vectors = torch.from_numpy(tower.encode(ENTITIES))
    theirs = reference.candidates([entity_ids(*entity) for entity in ENTITIES])
    torch.testing.assert_close(vectors, theirs, atol=1e-5, rtol=0)
    model, found = ours(folder)
    wanted = reference.mentions([text_ids(text) for text in TEXTS], PARAMS["max_mention_length"])
    assert found.keys() == wanted.keys()
    assert len(found) > 40
    for span, (logit, vector) in wanted.items():
        assert found[span][0] == pytest.approx(logit, abs=1e-5)
        torch.testing.assert_close(found[span][1], vector, atol=1e-5, rtol=0)
        candidates = Candidates(vectors[None], torch.zeros(1, len(vectors), 2), torch.ones(1, len(vectors)).bool())
        with torch.no_grad():
            scores = model.nil_scores(model.entity_scores(found[span][1][None], candidates))[0]
        dots = theirs @ vector
        torch.testing.assert_close(scores[:-1], dots, atol=2e-5, rtol=1e-5)  # sums of 128 products
        torch.testing.assert_close(scores.softmax(0)[:-1], dots.softmax(0), atol=1e-5, rtol=0)
        assert scores[-1] == -math.inf


# Scores


def test_scores_are_the_authors_to_five_places(converted, reference):
    assert_the_same(converted, reference)


def test_a_mention_may_be_one_piece_longer_than_their_parameter_says(converted):
    assert ElqConfig.read(converted).longest == PARAMS["max_mention_length"] + 1


def test_pieces_are_the_authors(converted):
    config = ElqConfig.read(converted)
    assert [code.ids for code in load_tokenizer(config.encoder).encode_batch(TEXTS)] == [*map(text_ids, TEXTS)]
    tower = EntityTower.load(config)
    read = [tower.tokenizer.encode(tower._input_text(*entity)).ids for entity in ENTITIES]
    assert read == [entity_ids(*entity) for entity in ENTITIES]
    assert max(map(len, read)) == PARAMS["max_cand_length"]
    assert read[2] == [IDS["[CLS]"], IDS["ohio"], IDS["[unused2]"], IDS["[SEP]"]]


def test_only_entities_have_a_piece_for_the_title_tag(converted):
    config = ElqConfig.read(converted)
    assert len(load_tokenizer(config.encoder).encode("[unused2]").ids) > 3
    assert load_tokenizer(config.entity_encoder).encode("a [unused2] b").ids[2] == IDS["[unused2]"]


@pytest.mark.parametrize("save", [{"_use_new_zipfile_serialization": False}, {}])
def test_files_of_old_and_of_parallel_runs_are_read(files, tmp_path, reference, save):
    state = reference.state("module.")
    state["module.context_encoder.bert_model.embeddings.position_ids"] = torch.arange(96)[None]
    torch.save({name: weight.half() if "bound" in name else weight for name, weight in state.items()}, tmp_path / "x")
    (tmp_path / "params").write_text(repr(PARAMS))
    config = convert_elq(tmp_path / "x", tmp_path / "params", tmp_path / "to", vocab=files / "vocab.txt")
    assert config == ElqConfig.read(tmp_path / "to")
    head = load_file(tmp_path / "to" / "model.safetensors")["mention_head.weight"]
    assert torch.equal(head, reference.head.weight.half().float())


def test_the_tokenizer_of_another_encoder_serves_as_well(files, tmp_path, converted, reference):
    source = str(converted / "encoder")
    convert_elq(files / "elq.bin", files / "params.txt", tmp_path / "to", tokenizer=source)
    assert_the_same(tmp_path / "to", reference)


def test_the_number_of_heads_can_be_given(files, tmp_path):
    reference = Reference(heads=4)
    torch.save(reference.state(), tmp_path / "x")
    convert_elq(tmp_path / "x", files / "params.txt", tmp_path / "to", vocab=files / "vocab.txt", heads=4)
    assert_the_same(tmp_path / "to", reference)


# The folder


def test_a_folder_names_only_what_is_in_it(converted):
    data = json.loads((converted / "config.json").read_text())
    assert (data["encoder"], data["entity_encoder"]) == ("./encoder", "./entities")
    assert ElqConfig.read(converted).entity_encoder == str(converted / "entities")
    assert {path.name for path in converted.iterdir()} == {"config.json", "model.safetensors", "encoder", "entities"}
    assert not list(converted.parent.glob(".*"))


def test_what_is_saved_elsewhere_reads_the_entities_where_they_are(converted, tmp_path, reference):
    Elq.from_pretrained(converted).save_pretrained(tmp_path / "tuned")
    assert ElqConfig.read(tmp_path / "tuned").entity_encoder == str(converted / "entities")
    assert_the_same(tmp_path / "tuned", reference)


def test_a_relative_name_of_a_recipe_is_kept_as_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "to").mkdir()
    ElqConfig(encoder="./mine", entity_encoder="./to/entities").write(tmp_path / "to")
    assert json.loads((tmp_path / "to" / "config.json").read_text())["entity_encoder"] == "./entities"
    assert ElqConfig.read(tmp_path / "to").encoder == str(tmp_path / "mine")


# The linker


def test_a_converted_linker_scores_as_theirs_but_for_the_half_precision_of_the_index(converted, tmp_path, reference):
    entities = [Entity(f"e{n}", title, text) for n, (title, text) in enumerate(ENTITIES)]
    build(lambda tally: iter(entities), tmp_path / "x.kb", origin=Origin("test"))
    with Linker.load(tmp_path / "x.kb", model=converted, sources="dense", precision="fp32") as linker:
        assert linker.backend.decoding.threshold == pytest.approx(math.exp(-2.9))
        scored = linker.score(TEXTS[0])
        document = scored.document(threshold=0.0, overlaps="keep")
    theirs = reference.candidates([entity_ids(*entity) for entity in ENTITIES]).half().float()
    offsets = load_tokenizer(ElqConfig.read(converted).encoder).encode(TEXTS[0]).offsets
    wanted = {}
    for (_, first, last), (logit, vector) in reference.mentions([text_ids(TEXTS[0])], 3).items():
        log_mention = -math.log1p(math.exp(-logit))
        joint = torch.log_softmax(theirs @ vector, 0) + log_mention
        if log_mention > -4.5:
            wanted[offsets[first][0], offsets[last][1]] = (f"e{int(joint.argmax())}", math.exp(float(joint.max())))
    assert len(wanted) > 5
    assert {(link.start, link.end): link.entity for link in document.links} == {
        span: entity for span, (entity, _) in wanted.items()
    }
    for link in document.links:
        assert link.score == pytest.approx(wanted[link.start, link.end][1], abs=1e-5)


@pytest.mark.parametrize(("requested", "quantised"), [("auto", False), ("fp32", False), ("int8", True)])
def test_a_converted_linker_computes_in_floats_unless_asked_otherwise(converted, tmp_path, requested, quantised):
    build(lambda tally: iter([Entity("e", "Ohio")]), tmp_path / "x.kb", origin=Origin("test"))
    assert json.loads((converted / "config.json").read_text())["precision"] == "fp32"
    windows, states = [np.arange(5, 15)], []
    for precision in (requested, "fp32"):
        with Linker.load(tmp_path / "x.kb", model=converted, precision=precision) as linker:
            states.append(linker.backend.model.states(windows))
    assert np.array_equal(*states) is not quantised


def test_a_text_longer_than_their_window_is_read_to_its_end(converted, tmp_path):
    build(lambda tally: iter([Entity("e", "Ohio")]), tmp_path / "x.kb", origin=Origin("test"))
    with Linker.load(tmp_path / "x.kb", model=converted, precision="fp32") as linker:
        text = "who is in the city " * 60
        scored = linker.score(text)  # 96 positions: a longer window would fail
    assert np.max(scored.spans) == len(text) - 1


@pytest.mark.parametrize("length", [20, 8, 3])
def test_windows_are_as_long_as_their_context_length(files, tmp_path, length):
    (tmp_path / "params").write_text(repr({**PARAMS, "max_context_length": length}))
    config = convert_elq(files / "elq.bin", tmp_path / "params", tmp_path / "to", vocab=files / "vocab.txt")
    (windows,) = window_tokenizer_of(config).tokenize(["who is in the city " * 12])
    assert max(map(len, windows)) == length
    assert sum(window.begins_mask.sum() for window in windows) == 60
    for window in windows[:-1]:  # a mention that begins here is seen whole
        behind = len(window) - 2 - np.flatnonzero(window.begins_mask).max()
        assert behind >= min(config.longest, 3 * (length - 2) // 4)


# What cannot be converted


def changed(state, **changes):
    return {name: weight for name, weight in {**state, **changes}.items() if weight is not None}


BERT = "context_encoder.bert_model."
BOUND = "classification_heads.mention_scores.bound_classifier."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{BERT}encoder.layer.1.output.dense.bias": None}, rf"are missing: {BERT}encoder.layer.1.output.dense.bias"),
        ({f"{BERT}embeddings.word_embeddings.weight": None}, rf"{BERT}embeddings.word_embeddings.weight is missing"),
        ({f"{BERT}encoder.more": torch.zeros(2)}, r"not BERT's: context_encoder.bert_model.encoder.more"),
        ({f"{BERT}encoder.layer.1.output.dense.bias": torch.zeros(2)}, "size mismatch.*the weights do not fit a BERT"),
        ({"cand_encoder.additional_linear.weight": torch.zeros(2, 2)}, "additional_linear.weight; only models with"),
        ({f"{BOUND}weight": None, f"{BOUND}bias": None}, "a bi-encoder of BLINK does not detect mentions"),
        ({f"{BOUND}weight": torch.zeros(3, 8)}, "qa_linear"),
    ],
)
def test_weights_that_do_not_fit_are_named(files, tmp_path, reference, changes, message):
    torch.save(changed(reference.state(), **changes), tmp_path / "x")
    with pytest.raises(InputError, match=message):
        convert_elq(tmp_path / "x", files / "params.txt", tmp_path / "to", vocab=files / "vocab.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_encoders_of_two_sizes_are_refused(files, tmp_path, reference):
    other = Reference(width=64).state()
    state = {name: other[name] if name.startswith("cand_encoder") else part for name, part in reference.state().items()}
    torch.save(state, tmp_path / "x")
    with pytest.raises(InputError, match="a width of 128 and entities of 64"):
        convert_elq(tmp_path / "x", files / "params.txt", tmp_path / "to", vocab=files / "vocab.txt")


class Evil:
    def __reduce__(self):
        return (print, ("a pickle ran",))


def test_nothing_in_a_checkpoint_is_run(files, tmp_path, capsys):
    torch.save({"weight": Evil()}, tmp_path / "zip")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "text").write_text("<html>404")
    (tmp_path / "empty").write_bytes(b"")
    torch.save({"step": 3}, tmp_path / "numbers")
    torch.save([torch.zeros(2)], tmp_path / "list")
    torch.save({}, tmp_path / "nothing")
    names = ["zip", "pickle", "text", "empty", "numbers", "list", "nothing", "absent", "."]
    for name in names:
        with pytest.raises(InputError, match=r"elq_wiki_large\.bin|check the path"):
            convert_elq(tmp_path / name, files / "params.txt", tmp_path / "to", vocab=files / "vocab.txt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is not a JSON object"),
        ("what?", "is not a JSON object"),
        ('{"hidden_size": 1024}', "'bert_model' is missing.*elq_large_params"),
        ({"mention_aggregation_type": "fl_avg"}, '\'mention_aggregation_type\' is "fl_avg"; expected "all_avg"'),
        ({"mention_aggregation_type": None}, "'mention_aggregation_type' is nothing"),
        ({"mention_scoring_method": "qa_mlp"}, 'expected "qa_linear"'),
        ({"add_linear": True}, "'add_linear' is true; expected false"),
        ({"max_mention_length": "ten"}, "expected a whole number"),
        ({"max_cand_length": 128}, "the encoder has 96 positions"),
        ({"max_mention_length": -1}, "max_mention_length"),
        ({"max_mention_length": 30}, "too long for an encoder of 96 positions"),
        ({"max_context_length": 128}, "the encoder has 96 positions"),
    ],
)
def test_other_parameters_are_refused(files, tmp_path, text, message):
    (tmp_path / "params").write_text(text if isinstance(text, str) else json.dumps({**PARAMS, **text}))
    with pytest.raises(InputError, match=message):
        convert_elq(files / "elq.bin", tmp_path / "params", tmp_path / "to", vocab=files / "vocab.txt")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (VOCAB[:-1], r"has \d+ tokens and the weights \d+; give the vocabulary of bert-large-uncased"),
        ([piece for piece in VOCAB if piece != "[unused2]"], r"has no token \[unused2\]"),
        ([*VOCAB[:-1], "who"], "a token twice"),
    ],
)
def test_another_vocabulary_is_refused(files, tmp_path, lines, message):
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        convert_elq(files / "elq.bin", files / "params.txt", tmp_path / "to", vocab=tmp_path / "vocab.txt")


@pytest.mark.parametrize("given", [{}, {"vocab": "vocab.txt", "tokenizer": "x"}])
def test_one_vocabulary_must_be_given(files, tmp_path, given):
    with pytest.raises(UsageError, match=r"either the vocab\.txt of bert-large-uncased"):
        convert_elq(files / "elq.bin", files / "params.txt", tmp_path / "to", **given)


def test_heads_that_do_not_divide_the_width_are_refused(files, tmp_path):
    with pytest.raises(InputError, match="3 attention heads do not divide a width of 128"):
        convert_elq(files / "elq.bin", files / "params.txt", tmp_path / "to", vocab=files / "vocab.txt", heads=3)


def test_what_is_there_is_not_overwritten(files, tmp_path, converted):
    with pytest.raises(UsageError, match="choose another folder"):
        convert_elq(files / "elq.bin", files / "params.txt", converted, vocab=files / "vocab.txt")
    (tmp_path / "to").mkdir()
    convert_elq(files / "elq.bin", files / "params.txt", tmp_path / "to", vocab=files / "vocab.txt")
    assert (tmp_path / "to" / "config.json").exists()


# The command line


@pytest.fixture
def run(wellread):
    return partial(wellread, "convert", "elq")


def test_the_command_writes_a_linker(run, files, tmp_path):
    to = tmp_path / "linker"
    result = run(files / "elq.bin", files / "params.txt", "--vocab", files / "vocab.txt", "--to", to)
    assert (result.code, result.out) == (0, ""), result.err
    assert result.err == f"the linker is in {to}; use it with: wellread link --model {to} --kb KB\n"
    assert ElqConfig.read(to).pooling == "cls"


def test_a_failing_command_is_one_line(run, files, tmp_path):
    result = run(files / "params.txt", files / "params.txt", "--vocab", files / "vocab.txt", "--to", tmp_path)
    assert (result.code, result.err.count("\n")) == (3, 1), result.err
    assert "give a state dict" in result.err


def test_the_help_has_an_example(run):
    assert "wellread convert elq elq_wiki_large.bin elq_large_params.txt" in run("--help").out
