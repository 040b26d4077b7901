"""Broken LUKE folders of either layout: one-line errors that name file and fix, and no output files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests import infused_models as infused
from tests import luke_models as lukes
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import InputError
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.conversion import convert_luke, load
from wellread.models.luke.heads import HEADS
from wellread.models.luke.vocabulary import EntityVocabulary

WEIGHTS, INDEX, SETTINGS = "model.safetensors", "model.safetensors.index.json", "tokenizer_config.json"
LAYOUTS = ("theirs", "ours")


@pytest.fixture(scope="module", params=LAYOUTS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid folder, written once per layout."""
    folder = tmp_path_factory.mktemp("whole")
    lukes.save(lukes.build("ForEntityClassification"), folder / "theirs")
    EntityVocabulary.of_ids(f"Q{number}" for number in range(7)).save(folder / "theirs")
    (folder / "theirs" / SETTINGS).write_text('{"tokenizer_class": "LukeTokenizer"}')
    convert_luke(folder / "theirs", folder / "ours")
    return folder / str(request.param)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """Copy of a valid folder, to be damaged."""
    (tmp_path / "it").mkdir()
    for file in whole.iterdir():
        (tmp_path / "it" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "it"


def refuses(folder: Path, *parts: str) -> None:
    """Check that conversion raises a one-line error with these parts and writes nothing."""
    with pytest.raises(InputError) as caught:
        convert_luke(folder, folder.parent / "new")
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(folder), *parts):
        assert part in message
    assert sorted(file.name for file in folder.parent.iterdir()) == [folder.name]


def change(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": "16"}, "'hidden_size' expected int, got str"),
        ({"hidden_size": None}, "'hidden_size' expected int, got NoneType"),
        ({"num_hidden_layers": 3.5}, "'num_hidden_layers' expected int, got float"),
        ({"layer_norm_eps": "small"}, "'layer_norm_eps' expected float, got str"),
        ({"num_attention_heads": 3}, "hidden size (16) is not a multiple of the number of attention heads (3)"),
        ({"num_attention_heads": 0}, "describes a model that cannot be built"),
        ({"max_position_embeddings": 1}, "describes a model that cannot be built"),
        ({"id2label": 3}, "describes a model that cannot be built"),
        ({"hidden_act": "swoosh"}, "hidden_act 'swoosh', which transformers does not know"),
        ({"hidden_act": None}, "hidden_act None, which"),
        ({"hidden_act": ["gelu"]}, "hidden_act ['gelu'], which"),
        ({"architectures": 7}, "architectures 7; expected a list"),
        ({"architectures": [7]}, "architectures [7]; expected a list"),
        ({"architectures": "LukeModel"}, "architectures 'LukeModel'; expected a list"),
        ({"architectures": ["LukeForPoetry"]}, "there is no head LukeForPoetry for roberta"),
        ({"num_hidden_layers": 4}, "lacks weights of its model: "),
        ({"num_hidden_layers": 2}, "more layers than its config.json says: "),
        ({"intermediate_size": 24}, "weights of another size than its config.json says"),
        ({"model_type": "infused-poetry"}, "a model of type 'infused-poetry'"),
    ],
    ids=str,
)
def test_an_invalid_configuration_raises_a_one_line_error(folder: Path, changes: dict[str, Any], says: str) -> None:
    change(folder, **changes)
    refuses(folder, says)


@pytest.mark.parametrize(
    ("whole", "infusions", "says"),
    [
        ("ours", None, "describes a model that cannot be built"),
        ("ours", [{"kind": "luke"}], "config.json: 'entities' is missing"),
        ("ours", [{"kind": "poetry"}], "config.json: 'poetry' is not an infusion"),
        ("ours", [{"kind": "luke", "entities": 12, "dim": 6}], "weights of another size than its config.json says"),
    ],
    indirect=["whole"],
    ids=str,
)
def test_invalid_infusions_raise_a_one_line_error(folder: Path, infusions: Any, says: str) -> None:
    change(folder, infusions=infusions)
    refuses(folder, says)


@pytest.mark.parametrize("whole", ["ours"], indirect=True)
@pytest.mark.parametrize("architectures", [None, []])
def test_a_folder_of_ours_without_a_named_head_needs_one(folder: Path, architectures: list[str] | None) -> None:
    change(folder, architectures=architectures)
    refuses(
        folder,
        "config.json does not say in architectures which head",
        'wellread.models.luke.conversion.load(folder, "Model")',
    )
    assert type(load(folder, "Model")) is HEADS["Model"]["roberta"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
        ('{"weight_map": {"a": 7}}', "has no weight_map"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "cannot read"),
    ],
)
def test_a_broken_weight_index_raises_a_one_line_error(folder: Path, content: str, says: str) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(content)
    refuses(folder, "gone.safetensors" if "gone" in content else INDEX, says, "again")


@pytest.mark.parametrize("damage", [lambda data: b"nothing", lambda data: data[:-100], lambda data: b""])
def test_damaged_weights_raise_a_one_line_error(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    (folder / WEIGHTS).write_bytes(damage((folder / WEIGHTS).read_bytes()))
    refuses(folder, f"cannot read {folder / WEIGHTS}", "copy or download it again")


def test_a_folder_without_weights_raises_a_one_line_error(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    refuses(folder, "has neither model.safetensors nor pytorch_model.bin", "copy or download it again")


@pytest.mark.parametrize("lost", ["word_embeddings.weight", "classifier.bias", "entity", "layer.1."])
def test_missing_weights_raise_a_one_line_error(folder: Path, lost: str) -> None:
    weights = load_file(folder / WEIGHTS)
    kept = {name: part for name, part in weights.items() if lost not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    refuses(folder, "weights")


def test_an_entity_table_must_have_two_dimensions(tmp_path: Path) -> None:
    lukes.save(lukes.build(), tmp_path / "it")
    weights = load_file(tmp_path / "it" / WEIGHTS)
    save_file(weights | {"entity_embeddings.entity_embeddings.weight": torch.zeros(9)}, tmp_path / "it" / WEIGHTS)
    refuses(tmp_path / "it", "no embeddings of entities")


@pytest.mark.parametrize("named", [True, False], ids=["class in config.json", "class in settings"])
@pytest.mark.parametrize(("content", "says"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_broken_tokenizer_settings_raise_a_one_line_error(folder: Path, content: str, says: str, named: bool) -> None:
    (folder / SETTINGS).write_text(content)
    if named:
        change(folder, tokenizer_class="LukeTokenizer")
    refuses(folder, str(folder / SETTINGS), says, "copy or download it again")


def test_a_broken_bert_tokenizer_raises_a_one_line_error(tmp_path: Path) -> None:
    lukes.save(infuse(infused.build("Bert", pad_token_id=0), [LukeConfig(entities=11, dim=6)]), tmp_path / "it")
    (tmp_path / "it" / "tokenizer.json").write_text("{")
    refuses(tmp_path / "it", "tokenizer.json is not a tokenizer", "copy it again")


@pytest.mark.parametrize("name", ["[MASK]", "[MASK2]"])
@pytest.mark.parametrize("where", ["entity_vocab.json", SETTINGS])
def test_masks_beyond_the_entity_table_raise_a_one_line_error(folder: Path, name: str, where: str) -> None:
    rows = dict(EntityVocabulary.load(folder).row_of) | {name: lukes.ENTITIES}
    (folder / "entity_vocab.json").unlink()
    (folder / where).write_text(json.dumps(rows if where != SETTINGS else {"entity_vocab": rows}))
    refuses(folder, str(folder / where), "in row 11, but the model's entity table has 11 rows", "of one model")


def test_masks_beyond_the_table_of_the_authors_files_raise_a_one_line_error(tmp_path: Path) -> None:
    theirs, it = lukes.build("ForMaskedLM"), tmp_path / "it"
    it.mkdir()
    torch.save(
        {name.removeprefix("luke."): part for name, part in theirs.state_dict().items()}, it / "pytorch_model.bin"
    )
    (it / "metadata.json").write_text(json.dumps({"model_config": theirs.config.to_dict()}))
    names = ["[PAD]", "[UNK]", "[MASK]", *(f"Entity {number}" for number in range(8)), "[MASK2]"]
    (it / "entity_vocab.tsv").write_text("".join(f"{name}\t0\n" for name in names))
    refuses(it, "entity_vocab.tsv has [MASK] or [MASK2] in row 11, but the model's entity table has 11 rows")


def test_a_head_missing_in_our_folder_is_not_initialised(tmp_path: Path) -> None:
    lukes.save(lukes.build(), tmp_path / "theirs")
    convert_luke(tmp_path / "theirs", tmp_path / "ours")
    with pytest.raises(InputError, match=r"lacks weights of its model: classifier.*num_labels"):
        load(tmp_path / "ours", "ForEntityClassification")


def test_a_family_without_entity_heads_has_its_other_heads(tmp_path: Path) -> None:
    saved = lukes.save(infuse(infused.build("Electra", "ForMaskedLM"), [LukeConfig(entities=11)]), tmp_path)
    assert type(load(saved)).__name__ == "InfusedElectraForMaskedLM"
    with pytest.raises(InputError, match="there is no head LukeForEntityClassification for electra"):
        load(saved, "ForEntityClassification")
