"""The authors' KnowBERT archive becomes an infused BERT with the same states, scores and losses: to 1e-5."""

import io
import json
import pickle
import shutil
import tarfile

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForMaskedLM

from tests.reference_knowbert import (
    HEADS,
    LENGTHS,
    MENTIONS,
    NAMES,
    POS,
    VOCAB,
    WIKI,
    Reference,
    all_right,
    draw_state,
    draw_texts,
    model_config,
    our_mentions,
    pack_up,
    their_mentions,
    write_archive,
)
from wellread.cli.convert import command
from wellread.encoders.infusion.infuse import base_of
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing
from wellread.errors import InputError, UsageError
from wellread.index.entity_vectors import EntityVectors
from wellread.kb.readers.sense_keys import SenseKeys
from wellread.models.knowbert.archive import parse_json
from wellread.models.knowbert.conversion import convert_knowbert, open_tables, take_vectors


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", "utf-8")
    config, state = model_config({"wordnet": 2, "wiki": 1}), draw_state()
    write_archive(folder / "both", state, config)
    pack_up(folder / "both", folder / "both.tar.gz")
    return folder


@pytest.fixture(scope="module")
def converted(files, tmp_path_factory):
    """Converted in one place and moved to another."""
    first, last = (tmp_path_factory.mktemp(name) / "model" for name in ("first", "last"))
    convert(files / "both.tar.gz", first, files)
    shutil.move(first, last)
    return last


def convert(archive, to, files, **options):
    return convert_knowbert(archive, to, **{"vocab": files / "vocab.txt", "heads": HEADS} | options)


def assert_the_same(folder, state, config, mentions=MENTIONS):
    """Hidden states, candidate scores, linking losses and the loss of masked words."""
    ids, types = draw_texts()
    kbs = list(config["soldered_kgs"])
    reference = Reference(state, config)
    states, scores, losses = reference.read(ids, types, {kb: their_mentions(kb, mentions[kb]) for kb in kbs})
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    take_vectors(model, folder)
    candidates = {
        kb: our_mentions(kb, mentions[kb], EntityVectors.open(folder / "vectors" / kb)) for kb in kbs if mentions[kb]
    }
    encoder, there = base_of(model), ids > 0
    for training in (False, True):
        with torch.set_grad_enabled(training):
            read = encoder.read(ids[there], Packing.of(LENGTHS), types[there], offers=candidates)
        torch.testing.assert_close(read.states.double(), states[there], atol=1e-5, rtol=0)
        for kb, arrays in candidates.items():
            for row, (text, entities) in enumerate(zip(arrays["text_of"].tolist(), arrays["entities"], strict=True)):
                place = row - int((arrays["text_of"] < text).sum())
                count = int((entities != -1).sum())
                found = read.outputs["links"][kb][row, :count].double()
                torch.testing.assert_close(found, scores[kb][text, place, :count], atol=1e-5, rtol=0)
        assert read.losses.keys() == {f"links {kb}" for kb in candidates if candidates[kb]["gold"].any()}
        for name, loss in read.losses.items():
            assert float(loss.detach()) == pytest.approx(float(losses[name.removeprefix("links ")]), abs=1e-5)
    labels = torch.where((torch.arange(ids.shape[1]) % 3 == 1) & there, 7, 0)
    with torch.no_grad():
        made = model(ids, there.long(), types, labels=torch.where(labels > 0, labels, -100), offers=candidates)
    assert float(made.loss) == pytest.approx(float(reference.hidden_words(states, labels)), abs=1e-5)
    return scores


# The same numbers


CASES = {
    "both": {"layers": {"wordnet": 2, "wiki": 1}},
    "both after one layer": {"layers": {"wordnet": 1, "wiki": 1}},
    "both with the other's mode": {"layers": {"wordnet": 0, "wiki": 2}, "swap": True},
    "wiki, all below the threshold": {"layers": {"wiki": 0}, "decode_threshold": 1000.0, "margin": 0.5},
    "wiki, none below the threshold": {"layers": {"wiki": 1}, "decode_threshold": -1000.0},
    "wordnet": {"layers": {"wordnet": 2}},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_states_scores_and_losses_are_the_authors(files, tmp_path, case):
    config, state = model_config(**case), draw_state(case["layers"], swap=case.get("swap", False))
    write_archive(tmp_path / "theirs", state, config, legacy=False)
    params = convert(tmp_path / "theirs", tmp_path / "to", files)
    assert params.soldered_layers == case["layers"]
    mentions = MENTIONS | ({"wiki": all_right(MENTIONS["wiki"])} if case.get("swap") else {})
    scores = assert_the_same(tmp_path / "to", state, config, mentions)
    if case is CASES["both"]:
        found = scores["wiki"][scores["wiki"] > -1000]
        assert bool((found < 0).any() and (found > 0).any())


@pytest.mark.parametrize("swap", [False, True], ids=["wordnet", "wiki"])
def test_mentions_without_candidates_and_texts_without_mentions_are_theirs(files, tmp_path, swap):
    config, state = model_config({"wordnet": 1, "wiki": 1}, swap), draw_state(swap=swap)
    write_archive(tmp_path / "theirs", state, config)
    convert(tmp_path / "theirs", tmp_path / "to", files)
    mentions = {kb: {1: [(1, 2, (), 0), (0, 3, (3, 2), 2)], 2: [(0, 1, (), 0)]} for kb in NAMES}
    assert_the_same(tmp_path / "to", state, config, mentions)
    assert_the_same(tmp_path / "to", state, config, {kb: {} for kb in NAMES})


def test_gold_that_is_not_a_candidate_has_no_loss_where_theirs_trains_the_first(converted):
    config, state = model_config({"wordnet": 2, "wiki": 1}), draw_state()
    mentions = MENTIONS | {"wordnet": {0: [(3, 3, (2, 3), 3)], 2: [(6, 7, (5, 4), 2)]}}
    only_known = MENTIONS | {"wordnet": {0: [(3, 3, (2, 3), 3)]}}
    ids, types = draw_texts()
    losses = []
    for given in (mentions, only_known):
        arrays = {kb: their_mentions(kb, given[kb]) for kb in NAMES}
        losses.append(float(Reference(state, config).read(ids, types, arrays)[2]["wordnet"]))
    model = AutoModelForMaskedLM.from_pretrained(converted).eval()
    take_vectors(model, converted)
    vectors = EntityVectors.open(converted / "vectors" / "wordnet")
    candidates = {"wordnet": our_mentions("wordnet", mentions["wordnet"], vectors)}
    wiki = EntityVectors.open(converted / "vectors" / "wiki")
    candidates["wiki"] = our_mentions("wiki", MENTIONS["wiki"], wiki)
    there = ids > 0
    with torch.no_grad():
        read = base_of(model).read(ids[there], Packing.of(LENGTHS), types[there], offers=candidates)
    # Text 2 has another mention, but no other text is changed by it.
    assert float(read.losses["links wordnet"]) == pytest.approx(losses[1], abs=1e-5)
    assert abs(losses[0] - losses[1]) > 0.01


# The folder


def test_a_tar_file_becomes_what_its_folder_becomes(files, converted, tmp_path):
    convert(files / "both", tmp_path / "to", files)
    paths = [sorted(path.relative_to(at) for path in at.rglob("*")) for at in (converted, tmp_path / "to")]
    assert paths[0] == paths[1]
    written = [path for path in paths[0] if (converted / path).is_file()]
    assert {path.name for path in written if len(path.parts) == 1} == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    }
    assert len(written) == 8
    for path in written:
        assert (converted / path).read_bytes() == (tmp_path / "to" / path).read_bytes()


def test_vectors_are_as_precise_as_theirs_and_found_by_their_ids(converted):
    state = draw_state()
    tables = open_tables(converted)
    linker = "soldered_kg.entity_linker.disambiguator.entity_embeddings"
    theirs = {
        "wiki": state[f"wiki_{linker}.weight"],
        "wordnet": state[f"wordnet_{linker}.entity_embeddings.weight"],
    }
    assert tables.keys() == theirs.keys()
    for kb, rows in theirs.items():
        vectors = EntityVectors.open(converted / "vectors" / kb)
        known = [(row, id) for row, id in enumerate(NAMES[kb]) if id not in ("@@PADDING@@", "@@MASK@@", "@@NULL@@")]
        assert len(vectors) == len(known) == len(NAMES[kb]) - 3
        for row, id in known:
            (place,) = vectors.rows_of([id])
            assert np.array_equal(tables[kb].vectors[place], rows[row].numpy())
            if kb == "wordnet":
                assert int(tables[kb].kinds[place]) == POS[row]
        assert vectors.rows_of(["@@MASK@@", "@@NULL@@", "Nowhere"]).tolist() == [-1, -1, -1]
    assert tables["wiki"].kinds is None
    assert EntityVectors.open(converted / "vectors" / "wiki").titles.take([0])[0].replace(" ", "_") in NAMES["wiki"]


def test_of_the_embedding_of_parts_of_speech_only_what_is_used_is_kept(converted):
    model = AutoModel.from_pretrained(converted)
    (kinds,) = (part.linker.entities.kinds for part in model.infusions if part.linker.entities.kinds is not None)
    theirs = draw_state()["wordnet_soldered_kg.entity_linker.disambiguator.entity_embeddings.pos_embeddings.weight"]
    assert torch.equal(kinds.weight, theirs[:9])


def test_the_encoder_alone_has_the_pooler(converted):
    model = AutoModel.from_pretrained(converted)
    assert len(load_encoder(str(converted)).infusions) == 2
    assert torch.equal(model.pooler.dense.weight, draw_state()["pooler.dense.weight"])


def test_a_converted_model_links_in_floats(converted):
    assert json.loads((converted / "config.json").read_text())["precision"] == "fp32"


def test_tokens_are_lowercased_but_keep_their_accents_as_theirs_do(converted):
    pieces = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert pieces.encode("Éa bÉ", "a").tokens == ["[CLS]", "é", "##a", "b", "##é", "[SEP]", "a", "[SEP]"]


def test_synsets_can_have_the_ids_of_the_wordnet_kb(files, tmp_path):
    keys = [
        ("dog%1:05:00::", "02084071-n", 1),
        ("frump%1:18:00::", "10114209-n", 1),
        ("able%3:00:00::", "00001740-a", 1),
    ]
    keys += [("full%3:00:01::", "01083157-a", 1), ("full%5:00:06:good:00", "00000006-a", 6)]
    keys += [(f"full%5:00:0{n}:x:00", f"0000000{n}-a", n) for n in range(2, 6)]
    convert(files / "both", tmp_path / "to", files, senses=SenseKeys(keys))
    vectors = EntityVectors.open(tmp_path / "to" / "vectors" / "wordnet")
    ids = set(vectors.ids.take(range(len(vectors))))
    # "run" is not known to these keys.
    assert ids == {"@@UNKNOWN@@", "02084071-n", "10114209-n", "00001740-a", "00000006-a", "run.v.01"}
    wiki = EntityVectors.open(tmp_path / "to" / "vectors" / "wiki")
    assert wiki.rows_of(["Place_3"])[0] >= 0


def test_a_folder_without_vectors_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no entity vectors in"):
        open_tables(tmp_path)


# Their files


def test_what_was_shipped_as_json_is_read():
    text = r"""
    // a comment
    {"a": [1, 2,], /* "b": 3, */ "url": "https://x.y/z,}", # more
     "c": {"d": "\\",  // {
     },}
    """
    assert parse_json(text) == {"a": [1, 2], "url": "https://x.y/z,}", "c": {"d": "\\"}}
    with pytest.raises(ValueError, match="Expecting"):
        parse_json('{"a": 1,,}')


def test_half_precision_and_an_archive_without_a_head_are_read(files, tmp_path):
    config = model_config({"wiki": 1})
    state = {n: part.half() for n, part in draw_state(["wiki"]).items() if ".cls." not in n and "heads" not in n}
    write_archive(tmp_path / "theirs", state, config)
    convert(tmp_path / "theirs", tmp_path / "to", files)
    model = AutoModel.from_pretrained(tmp_path / "to")
    take_vectors(model, tmp_path / "to")
    assert json.loads((tmp_path / "to" / "config.json").read_text())["architectures"] == ["InfusedBertModel"]
    assert model.infusions[0].back.weight.dtype == torch.float32


def test_lists_of_entities_and_a_vocabulary_can_be_elsewhere(files, tmp_path):
    write_archive(tmp_path / "theirs", draw_state(["wiki"]), model_config({"wiki": 1}))
    entities = tmp_path / "theirs" / "vocabulary" / "entity_wiki.txt"
    entities.rename(tmp_path / "list.txt")
    with pytest.raises(InputError, match=r"has no vocabulary/entity_wiki.txt; .*--entities wiki=FILE"):
        convert(tmp_path / "theirs", tmp_path / "to", files)
    shutil.copy(files / "vocab.txt", tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "to", files, entities={"wiki": tmp_path / "list.txt"}, vocab=None)
    assert len(EntityVectors.open(tmp_path / "to" / "vectors" / "wiki")) == len(WIKI) - 3
    with pytest.raises(UsageError, match="the archive has no wikt; its knowledge bases are: wiki"):
        convert(tmp_path / "theirs", tmp_path / "more", files, entities={"wikt": "x"})


# What cannot be converted


def refused(archive, tmp_path, files, message, kind=InputError, **options):
    with pytest.raises(kind, match=message) as caught:
        convert(archive, tmp_path / "to", files, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "to").exists()
    assert not list(tmp_path.glob(".to*"))


@pytest.mark.parametrize("name", ["config.json", "weights.th"])
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "tar"])
def test_files_that_are_missing_are_named(files, tmp_path, name, packed):
    shutil.copytree(files / "both", tmp_path / "theirs")
    (tmp_path / "theirs" / name).unlink()
    archive = pack_up(tmp_path / "theirs", tmp_path / "x.tar", "w") if packed else tmp_path / "theirs"
    refused(archive, tmp_path, files, f"has no {name}; give an archive with config.json, weights.th")


def test_archives_that_are_none_are_refused(files, tmp_path):
    whole = (files / "both.tar.gz").read_bytes()
    pack_up(files / "both", tmp_path / "plain.tar", "w")
    plain = (tmp_path / "plain.tar").read_bytes()
    broken = {"gz": whole[: len(whole) // 2], "tar": plain[: len(plain) // 2], "html": b"<html>404", "empty": b""}
    broken["bits"] = whole[:2000] + bytes(200) + whole[2200:]
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, tmp_path, files, r"not an archive, or it is truncated or damaged .*download it again")
    refused(tmp_path / "absent", tmp_path, files, "there is no .*absent; give the archive")


def test_what_leads_out_of_an_archive_is_not_looked_at(files, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("../config.json", "vocabulary/..", "/weights.th", "vocabulary/../../config.json"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("config.json")
        link.type, link.linkname = tarfile.SYMTYPE, str(files / "both" / "config.json")
        tar.addfile(link)
    refused(tmp_path / "x.tar", tmp_path, files, "has no config.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


class Evil:
    def __reduce__(self):
        return (print, ("a pickle ran",))


def test_nothing_in_weights_is_run(files, tmp_path, capsys):
    shutil.copytree(files / "both", tmp_path / "theirs")
    weights = tmp_path / "theirs" / "weights.th"
    for write in (
        lambda: torch.save({"weight": Evil()}, weights),
        lambda: weights.write_bytes(pickle.dumps(Evil())),
        lambda: torch.save({"step": 3}, weights),
    ):
        write()
        refused(tmp_path / "theirs", tmp_path, files, r"^weights\.th of .*theirs .*state dict.*weights\.th")
    assert capsys.readouterr().out == ""


def changed(config, path, value):
    config = json.loads(json.dumps(config))
    *steps, last = path.split(".")
    table = config
    for step in steps:
        table = table[step]
    table[last] = value
    return config


LINKER = "soldered_kgs.wiki.entity_linker"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("type", "simple-classifier", 'model: \'type\' is "simple-classifier"; expected "knowbert"; give the archive'),
        ("soldered_layers", {"wiki": 9}, "layer 9 is not one of the encoder's 3"),
        ("soldered_layers", {"wikt": 1}, "has the layers of wiki, but positions of wikt"),
        (f"{LINKER}.type", "own", "expected .entity_linking_with_candidate_mentions."),
        (f"{LINKER}.loss_type", "hinge", 'expected "margin" or "softmax"'),
        (f"{LINKER}.span_encoder_config", None, "span_encoder_config' is nothing"),
        (f"{LINKER}.span_encoder_config.num_hidden_layers", 2, "more than one block over its mentions"),
        (f"{LINKER}.span_encoder_config.intermediate_size", 7, "have different sizes"),
        (
            f"{LINKER}.output_feed_forward_hidden_dim",
            7,
            r"have other sizes: wiki_.*out_layer_1.weight.* and 1 more|have other sizes: wiki_.*out_layer_1.weight",
        ),
    ],
)
def test_other_models_are_refused(files, tmp_path, path, value, message):
    config = changed(model_config({"wiki": 1}), path, value)
    shutil.copytree(one(files), tmp_path / "theirs")
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({"model": config}))
    refused(tmp_path / "theirs", tmp_path, files, message)


def one(files):
    """The archive of wiki alone."""
    if not (files / "wiki").exists():
        write_archive(files / "wiki", draw_state(["wiki"]), model_config({"wiki": 1}))
    return files / "wiki"


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "has no table `model`"), ("{", "is not JSON"), ("", "is not JSON")]
)
def test_what_is_no_config_is_refused(files, tmp_path, text, message):
    shutil.copytree(one(files), tmp_path / "theirs")
    (tmp_path / "theirs" / "config.json").write_text(text)
    refused(tmp_path / "theirs", tmp_path, files, f"config.json of .*{message}.*such as knowbert_wiki")


DISAMBIGUATOR = "wiki_soldered_kg.entity_linker.disambiguator"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{DISAMBIGUATOR}.dot_attention_with_prior.null_embedding": None}, "are missing: .*prior.null_embedding;"),
        (
            {"wiki_soldered_kg.span_attention_layer.attention.output.dense.bias": None},
            "are missing: wiki_soldered_kg.span_attention_layer.attention.output.dense.bias;",
        ),
        ({f"{DISAMBIGUATOR}.entity_embeddings.weight": None}, "are missing: .*disambiguator.entity_embeddings.weight;"),
        ({f"{DISAMBIGUATOR}.bert_to_kg_projector.weight": None}, "are missing: .*bert_to_kg_projector"),
        ({f"{DISAMBIGUATOR}.entity_embeddings.weight": torch.zeros(5, 8)}, "has 5 entity vectors, .* list of 11"),
        ({f"{DISAMBIGUATOR}.span_encoder.layer.1.x": torch.zeros(1)}, "are not KnowBERT's: .*layer.1.x;"),
        (
            {"model.classifier.weight": torch.zeros(1)},
            "config.json does not define: model.classifier.weight; only models of type",
        ),
        ({"wiki_soldered_kg.output_layer_norm.bias": torch.zeros(3)}, "have other sizes: .*output_layer_norm.bias;"),
        ({"pretrained_bert.cls.predictions.decoder.weight": torch.zeros(1)}, "is not the token embedding"),
        ({"pretrained_bert.bert.pooler.dense.bias": None}, "are missing: pretrained_bert.bert.pooler.dense.bias"),
    ],
)
def test_weights_that_do_not_fit_are_named(files, tmp_path, changes, message):
    shutil.copytree(one(files), tmp_path / "theirs")
    state = {n: part for n, part in {**draw_state(["wiki"]), **changes}.items() if part is not None}
    torch.save(state, tmp_path / "theirs" / "weights.th")
    refused(tmp_path / "theirs", tmp_path, files, message)


def test_a_vocabulary_of_others_is_refused(files, tmp_path):
    (tmp_path / "less.txt").write_text("\n".join(VOCAB[:-1]))
    refused(one(files), tmp_path, files, r"has \d+ tokens and the weights \d+", vocab=tmp_path / "less.txt")
    (tmp_path / "maskless.txt").write_text("\n".join("x[" if piece == "[MASK]" else piece for piece in VOCAB))
    refused(one(files), tmp_path, files, r"has no token \[MASK\]", vocab=tmp_path / "maskless.txt")
    refused(one(files), tmp_path, files, r"give either the vocab\.txt of bert-base-uncased", UsageError, vocab=None)


def test_a_folder_that_is_not_empty_is_left_alone(files, tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "mine").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        convert(one(files), tmp_path / "to", files)
    assert [path.name for path in tmp_path.rglob("*")] == ["to", "mine"]


# The command


def test_the_command_converts_and_says_how_to_go_on(files, tmp_path):
    (tmp_path / "list").write_text("\n".join(WIKI[1:]))
    arguments = [str(one(files)), "--to", str(tmp_path / "to"), "--vocab", str(files / "vocab.txt"), "--heads", "2"]
    result = CliRunner().invoke(command, ["knowbert", *arguments, "--entities", f"wiki={tmp_path / 'list'}"])
    assert result.exit_code == 0, result.output
    assert f"wellread link --model {tmp_path / 'to'} --kb KB" in result.output
    assert (tmp_path / "to" / "vectors" / "wiki" / "vectors.json").is_file()
    result = CliRunner().invoke(command, ["knowbert", *arguments, "--entities", "wiki"])
    assert isinstance(result.exception, UsageError)
    assert "--entities is 'wiki'; expected KB=FILE" in str(result.exception)
