"""Loading encoders by name: folders, assets, errors and digests."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertModel, DistilBertConfig, RobertaConfig

from tests import luke_models as lukes
from tests.models.luke.test_mention_windows import xlm as sentence_pieces
from tests.toy_models import tokenizer, write_encoder
from wellread import assets
from wellread.encoders.files import encoder_digest, find_encoder, load_tokenizer, positions_of, width_of
from wellread.encoders.infusion.infuse import infuse
from wellread.encoders.load import add_adapters, load_encoder, merge_adapters, save_tokenizer
from wellread.encoders.packing import Packing, encode
from wellread.errors import AssetError, InputError
from wellread.models.knowbert.config import KnowBertConfig


@pytest.fixture
def copied(encoder, tmp_path):
    shutil.copytree(encoder, tmp_path / "copied")
    return tmp_path / "copied"


def states_of(model, texts=("who is ada", "cork")):
    codes = tokenizer().encode_batch(list(texts))
    ids = torch.tensor([id for code in codes for id in code.ids])
    with torch.no_grad():
        return encode(model, ids, Packing.of([len(code.ids) for code in codes]))


def test_a_folder_is_loaded_packed_and_at_rest(encoder, capfd):
    model = load_encoder(encoder)
    assert not model.training
    assert model.pooler is None
    assert states_of(model).shape == (8, 16)
    assert torch.equal(states_of(model), states_of(load_encoder(encoder)))
    assert capfd.readouterr() == ("", "")


def test_packed_states_are_those_that_transformers_gives(encoder):
    theirs = BertModel.from_pretrained(encoder, add_pooling_layer=False).eval()
    ids = torch.tensor([tokenizer().encode("who is ada").ids])
    with torch.no_grad():
        want = theirs(input_ids=ids).last_hidden_state[0]
    assert torch.allclose(states_of(load_encoder(encoder))[:5], want, atol=1e-5)


def test_the_tokenizer_neither_cuts_nor_pads(copied):
    mine = tokenizer()
    mine.enable_truncation(4)
    mine.enable_padding(length=9)
    mine.save(str(copied / "tokenizer.json"))
    assert len(load_tokenizer(str(copied)).encode("cork " * 20).ids) == 22


def test_an_asset_is_fetched(encoder, monkeypatch):
    name = next(iter(assets.ASSETS))
    monkeypatch.setattr(assets, "fetch", lambda requested: {name: encoder}[requested])
    assert find_encoder(name) == encoder


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_a_path_that_is_no_folder_names_the_fix(name):
    with pytest.raises(InputError, match=r"is not a folder with an encoder; give one with config\.json"):
        find_encoder(name)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        load_encoder(str(tmp_path / "model"))


def test_a_failed_download_names_the_fix(monkeypatch):
    def refuse(*args, **options):
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(AssetError, match=r"could not be downloaded from the hub \(ConnectionError\); check the name"):
        find_encoder(f"somebody/model@{'0a' * 20}")


def test_a_model_of_a_commit_is_downloaded(monkeypatch, encoder):
    requested = []

    def give(name, revision, allow_patterns):
        requested.append((name, revision))
        return encoder

    monkeypatch.setattr("huggingface_hub.snapshot_download", give)
    assert str(find_encoder(f"somebody/model@{'0a' * 20}")) == encoder
    assert requested == [("somebody/model", "0a" * 20)]


@pytest.mark.parametrize("name", ["somebody/model", "somebody/model@main"])
def test_a_model_without_a_commit_is_not_downloaded(monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **options: pytest.fail("fetched"))
    with pytest.raises(InputError, match="somebody/model@COMMIT"):
        find_encoder(name)


def test_the_room_of_an_encoder_is_known(encoder):
    assert positions_of(encoder) == BertModel.from_pretrained(encoder).config.max_position_embeddings


def spoil(what, folder):
    weights = folder / "model.safetensors"
    match what:
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case "no weights":
            weights.unlink()
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:200])
        case "no weight of a layer":
            parts = load_file(weights)
            parts = {name: part for name, part in parts.items() if "layer.1.output" not in name}
            save_file(parts, weights, metadata={"format": "pt"})
        case "another width":
            data = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**data, "hidden_size": 8}))
        case "unknown kind":
            (folder / "config.json").write_text('{"model_type": "sphinx"}')
        case "no json":
            (folder / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("empty", "has no encoder that transformers can load"),
        ("no weights", "has no encoder that transformers can load"),
        ("cut weights", "has no encoder that transformers can load"),
        ("no weight of a layer", "lacks 4 weights of its encoder, e.g. encoder.layer.1.output"),
        ("another width", "copied"),
        ("unknown kind", "has no encoder that transformers can load"),
        ("no json", "has no encoder that transformers can load"),
    ],
)
def test_a_broken_encoder_is_refused_by_name(copied, what, message):
    spoil(what, copied)
    with pytest.raises(InputError, match=message):
        load_encoder(str(copied))


def test_a_luke_of_others_is_to_be_converted_first(tmp_path):
    folder = str(lukes.save(lukes.build(), tmp_path))
    for ask in (load_encoder, width_of, positions_of):
        with pytest.raises(InputError, match="convert it first: wellread convert luke"):
            ask(folder)


@pytest.mark.parametrize(("types", "wanted"), [(1, {0}), (2, {0, 1})])
def test_an_encoder_of_one_type_gets_no_other_types(tmp_path, types, wanted):
    """mLUKE's tokenizer counts the second text as of another type, which its encoder has not."""
    theirs = sentence_pieces()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"type_vocab_size": types}))
    code = load_tokenizer(str(tmp_path)).encode("Los Angeles", "in Los")
    assert set(code.type_ids) == wanted
    assert code.ids == theirs("Los Angeles", "in Los")["input_ids"]


def test_letters_that_mlukes_tokenizer_does_not_know_are_no_beginning_of_a_text(tmp_path):
    """transformers maps them to row 0, <s>, unless the entities are added."""
    theirs = sentence_pieces()
    theirs.save_pretrained(tmp_path)
    text = "Los 日本 Angeles"
    code = load_tokenizer(str(tmp_path)).encode(text)
    assert code.ids == theirs(text, entities=[], entity_spans=[])["input_ids"]
    assert code.ids.count(theirs.unk_token_id) == 1


def test_a_saved_tokenizer_has_types_only_if_the_encoder_has(tmp_path):
    sizes = {"vocab_size": 50, "max_position_embeddings": 34, "pad_token_id": 1}
    for config, room, types in [
        (RobertaConfig(**sizes, type_vocab_size=1), 32, False),
        (BertConfig(**sizes, type_vocab_size=2), 34, True),
        (DistilBertConfig(**sizes), 34, False),
    ]:
        save_tokenizer(tokenizer(), tmp_path, config)
        made = AutoTokenizer.from_pretrained(tmp_path)
        assert (made.model_max_length, "token_type_ids" in made("cork", "dover")) == (room, types)
        assert made("cork", "dover")["input_ids"] == tokenizer().encode("cork", "dover").ids


def test_a_broken_tokenizer_is_refused_by_name(copied):
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(str(copied))


def test_a_folder_without_a_tokenizer_names_the_fix(tmp_path):
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"add its tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_adapters_freeze_all_but_themselves(encoder):
    model = load_encoder(encoder)
    before = states_of(model)
    add_adapters(model, 2)
    assert torch.equal(states_of(model), before)
    learns = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert len(learns) == 2 * 2 * 6
    assert all(".lora_" in name for name in learns)


def test_infusions_get_no_adapters(encoder):
    model = infuse(load_encoder(encoder), [KnowBertConfig(layer=0, dim=4, heads=2, inner=4, raw=3)])
    add_adapters(model, 2)
    assert not any(".lora_" in name for name in model.infusions.state_dict())
    assert sum(".lora_" in name for name in model.state_dict()) == 2 * 2 * 6


def test_merging_twice_is_merging_once(encoder):
    model = load_encoder(encoder)
    add_adapters(model, 2)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.1
    before = states_of(model)
    merge_adapters(model)
    once = states_of(model)
    merge_adapters(model)
    assert torch.equal(states_of(model), once)
    assert torch.allclose(once, before, atol=1e-5)


def test_a_digest_depends_on_weights_tokens_and_settings(encoder, copied, tmp_path):
    assert encoder_digest(str(copied)) == encoder_digest(encoder)
    assert encoder_digest(write_encoder(tmp_path / "other", seed=9)) != encoder_digest(encoder)
    for file in ("config.json", "tokenizer.json"):
        changed = tmp_path / file
        shutil.copytree(encoder, changed)
        (changed / file).write_text((changed / file).read_text() + "\n")
        assert encoder_digest(str(changed)) != encoder_digest(encoder)


def test_a_note_beside_the_weights_changes_no_digest(encoder, tmp_path):
    shutil.copytree(encoder, tmp_path / "noted")
    (tmp_path / "noted" / "README.md").write_text("hello")
    assert encoder_digest(str(tmp_path / "noted")) == encoder_digest(encoder)


def test_a_folder_that_changed_has_another_digest(copied):
    before = encoder_digest(str(copied))
    shutil.rmtree(copied)
    write_encoder(copied, seed=9)
    assert encoder_digest(str(copied)) != before


def test_an_asset_s_digest_needs_no_download(monkeypatch):
    monkeypatch.setattr(assets, "fetch", lambda name: pytest.fail("fetched"))
    digests = {encoder_digest(name) for name in assets.ASSETS}
    assert all(len(digest) == 64 for digest in digests)
