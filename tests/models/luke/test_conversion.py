"""Conversion between our layout and transformers': same outputs, same weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from tests import infused_models as infused
from tests import luke_models as lukes
from tests.models.luke.test_mention_windows import roberta as byte_pairs
from tests.models.luke.test_mention_windows import xlm as sentence_pieces
from tests.task_models import TOKENIZER
from wellread.cli.convert import command
from wellread.encoders.infusion.infuse import infuse, infused_class
from wellread.encoders.load import load_encoder, silence
from wellread.errors import InputError, UsageError
from wellread.models.kam.model import KamConfig
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.conversion import convert_luke, from_hf, load, to_hf
from wellread.models.luke.heads import HEADS
from wellread.models.luke.model import PADDED, luke_of
from wellread.models.luke.vocabulary import EntityVocabulary
from wellread.tasks.mention_markers import masks_of

EVERY = (3, 2, 2, 2)
"""Number of entities of each text, for heads that need two."""


def compare(ours: torch.nn.Module, theirs: torch.nn.Module, head: str) -> None:
    given = lukes.batch(head, EVERY)
    mask, there = given["attention_mask"] > 0, given["entity_attention_mask"] > 0
    found, wanted = ours(**given), theirs(**given)
    compared = [name for name in wanted if found.get(name) is not None]
    assert len(compared) == len(wanted)
    for name in compared:
        one, other = found[name], wanted[name]
        if one.shape[:2] == mask.shape:
            one, other = one[mask], other[mask]
        elif one.shape[:2] == there.shape:
            one, other = one[there], other[there]
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("aware", [True, False], ids=["aware", "not aware"])
@pytest.mark.parametrize("head", lukes.HEADS)
def test_every_head_has_the_same_outputs_after_conversion_and_back(head: str, aware: bool, tmp_path: Path) -> None:
    theirs = lukes.build(head, aware=aware, dim=lukes.WIDTH if aware else 6)
    ours = from_hf(lukes.save(theirs, tmp_path / "theirs")).eval()
    compare(ours, theirs, head)
    compare(load(lukes.save(ours, tmp_path / "ours")).eval(), theirs, head)
    to_hf(ours, tmp_path / "back")
    back, report = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    weights = back.state_dict()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weights[name], weight), name


@pytest.mark.parametrize("head", lukes.HEADS[1:])
def test_losses_and_their_gradients_are_those_of_transformers(head: str, tmp_path: Path) -> None:
    theirs = lukes.build(head).train()
    ours = from_hf(lukes.save(theirs, tmp_path)).train()
    given = lukes.batch(head, EVERY)
    if head == "ForQuestionAnswering":  # where theirs has padding compete with words
        given = {name: part[[0, 2]] for name, part in given.items()}
    given |= lukes.labels(head, given)
    losses = [model(**given).loss for model in (ours, theirs)]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    for loss in losses:
        loss.backward()
    luke, table = luke_of(ours), theirs.luke.entity_embeddings
    torch.testing.assert_close(luke.wide.weight.grad, table.entity_embedding_dense.weight.grad, atol=1e-5, rtol=1e-4)
    mine, wanted = (model.get_input_embeddings().weight.grad for model in (ours, theirs))
    torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("head", lukes.HEADS)
def test_every_head_is_loaded_from_either_layout_by_its_class(head: str, family: str, tmp_path: Path) -> None:
    theirs = lukes.build(head)
    made = HEADS[head][family]
    ours = made.from_pretrained(lukes.save(theirs, tmp_path / "theirs")).eval()
    compare(ours, theirs, head)
    saved = str(lukes.save(ours, tmp_path / "ours"))
    for again in (made.from_pretrained(saved), made.from_pretrained(pretrained_model_name_or_path=saved), load(saved)):
        assert type(again) is made
        compare(again.eval(), theirs, head)
    compare(pickle.loads(pickle.dumps(ours)), theirs, head)
    to_hf(ours, tmp_path / "back")
    compare(type(theirs).from_pretrained(tmp_path / "back").eval(), theirs, head)


@pytest.mark.parametrize("head", [head for head in lukes.HEADS if "Entity" not in head and head != "ForMaskedLM"])
def test_auto_classes_load_what_heads_for_texts_save(head: str, tmp_path: Path) -> None:
    theirs = lukes.build(head)
    ours = HEADS[head]["roberta"].from_pretrained(lukes.save(theirs, tmp_path / "theirs"))
    auto = getattr(transformers, f"Auto{'' if head == 'Model' else 'Model'}{head}")
    again = auto.from_pretrained(lukes.save(ours, tmp_path / "ours"))
    assert type(again) is infused_class("roberta", head)
    compare(again.eval(), theirs, head)


@pytest.mark.parametrize("head", lukes.HEADS)
def test_hf_folders_are_loaded_in_the_requested_precision(head: str, tmp_path: Path) -> None:
    lukes.save(lukes.build(head), tmp_path)
    for name in ("dtype", "torch_dtype"):
        ours = HEADS[head]["roberta"].from_pretrained(tmp_path, **{name: torch.bfloat16}, local_files_only=True)
        assert {weight.dtype for weight in ours.parameters()} == {torch.bfloat16}
    again = load(lukes.save(ours, tmp_path / "ours"))
    assert {weight.dtype for weight in again.parameters()} == {torch.bfloat16}
    with pytest.raises(UsageError, match="dtype is 'poetry'; expected one of torch's"):
        HEADS[head]["roberta"].from_pretrained(tmp_path, dtype="poetry")


def test_settings_of_hf_folders_can_be_overridden(tmp_path: Path) -> None:
    lukes.save(lukes.build("ForTokenClassification"), tmp_path)
    made = HEADS["ForTokenClassification"]["roberta"]
    ours = made.from_pretrained(tmp_path, hidden_dropout_prob=0.5, id2label={0: "O", 1: "B", 2: "I"})
    assert luke_of(ours).dropout.p == ours.roberta.embeddings.dropout.p == 0.5
    assert ours.config.id2label[1] == "B"
    with pytest.raises(
        UsageError, match=r"does not support device_map, revision; leave it out \(supported: .*convert it"
    ):
        made.from_pretrained(tmp_path, revision="main", device_map="auto")
    with pytest.raises(UsageError, match="does not support second argument"):
        made.from_pretrained(tmp_path, ours.config)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("head", ["ForEntityClassification", "ForSequenceClassification", "ForTokenClassification"])
def test_a_new_head_is_initialised_if_labels_are_given(head: str, family: str, tmp_path: Path) -> None:
    theirs = lukes.build("ForMaskedLM")
    lukes.save(theirs, tmp_path / "words")
    made = HEADS[head][family]
    ours = made.from_pretrained(tmp_path / "words", num_labels=9).eval()
    assert ours(**lukes.batch(head, EVERY)).logits.shape[-1] == 9
    assert torch.equal(luke_of(ours).table.weight, theirs.luke.entity_embeddings.entity_embeddings.weight)
    lukes.save(lukes.build(head), tmp_path / "head")
    with pytest.raises(InputError, match="has weights of another size"):
        made.from_pretrained(tmp_path / "head", num_labels=9)
    with silence():
        again = made.from_pretrained(tmp_path / "head", num_labels=9, ignore_mismatched_sizes=True).eval()
    assert again(**lukes.batch(head, EVERY)).logits.shape[-1] == 9
    settings = json.loads((tmp_path / "head" / "config.json").read_text())
    (tmp_path / "head" / "config.json").write_text(json.dumps(settings | {"intermediate_size": 21}))
    with pytest.raises(InputError, match="has weights of another size"):
        made.from_pretrained(tmp_path / "head", num_labels=9, ignore_mismatched_sizes=True)


@pytest.mark.parametrize("head", ["Model", "ForSequenceClassification"])
def test_a_class_that_cannot_load_the_folder_names_one_that_can(head: str, tmp_path: Path) -> None:
    lukes.save(lukes.build(head), tmp_path)
    with pytest.raises(UsageError, match=r"a class in wellread\.models\.luke\.heads\.HEADS, or convert it first"):
        infused_class("roberta", head).from_pretrained(tmp_path)


@pytest.mark.parametrize("made", [HEADS["Model"]["roberta"], infused_class("roberta", "Model")])
def test_a_luke_on_the_hub_is_not_loaded_without_entities(
    made: type[PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((lukes.save(lukes.build(), tmp_path) / "config.json").read_text())
    monkeypatch.setattr(PreTrainedConfig, "_get_config_dict", lambda *args, **options: (dict(settings), {}))
    with pytest.raises(UsageError, match=r"download it first .hf download somebody/luke --local-dir FOLDER., and load"):
        made.from_pretrained("somebody/luke")
    with pytest.raises(InputError, match=r"has no config.json; .* hf download somebody/luke --local-dir NEW"):
        load("somebody/luke")


def test_a_head_missing_in_an_hf_folder_is_not_initialised(tmp_path: Path) -> None:
    lukes.save(lukes.build(), tmp_path)
    made = HEADS["ForEntityClassification"]["roberta"]
    with pytest.raises(InputError, match=r"lacks weights of its model: classifier.*to train a new head, load it with"):
        made.from_pretrained(tmp_path)
    convert_luke(tmp_path, tmp_path / "ours")
    with silence():
        fresh = made.from_pretrained(tmp_path / "ours", num_labels=9)
    assert fresh(**lukes.batch("ForEntityClassification", EVERY)).logits.shape == (4, 9)
    assert torch.equal(luke_of(fresh).table.weight, luke_of(load(tmp_path)).table.weight)


def test_masked_words_and_entities_are_scored_at_labelled_positions(tmp_path: Path) -> None:
    theirs = lukes.build("ForMaskedLM")
    ours = from_hf(lukes.save(theirs, tmp_path)).eval()
    given = lukes.batch("ForMaskedLM", EVERY)
    labels = lukes.labels("ForMaskedLM", given)
    found, wanted = ours(**given, **labels), theirs(**given, **labels)
    for name in ("loss", "mlm_loss", "mep_loss"):
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.logits, wanted.logits[labels["labels"] >= 0], atol=1e-5, rtol=1e-5)
    labelled = labels["entity_labels"] >= 0
    torch.testing.assert_close(found.entity_logits, wanted.entity_logits[labelled], atol=1e-5, rtol=1e-5)
    nothing = {name: torch.full_like(part, -100) for name, part in labels.items()}
    assert ours(**given, **nothing).loss == 0


@pytest.mark.parametrize("labelled", [False, True], ids=["plain", "with labels"])
@pytest.mark.parametrize("head", lukes.HEADS)
def test_outputs_as_tuples_are_those_of_transformers(head: str, labelled: bool, tmp_path: Path) -> None:
    theirs = lukes.build(head)
    ours = from_hf(lukes.save(theirs, tmp_path)).eval()
    given = lukes.batch(head, EVERY)
    if labelled and head != "Model":
        given |= lukes.labels(head, given)
    wanted = theirs(**given)
    found = ours(**given, return_dict=False)
    assert isinstance(found, tuple)
    assert len(found) == len(wanted.to_tuple())
    assert all(torch.equal(one, other) for one, other in zip(found, ours(**given).to_tuple(), strict=True))


def test_entity_states_have_the_padding_of_the_inputs(tmp_path: Path) -> None:
    theirs = lukes.build("ForMaskedLM")
    ours = from_hf(lukes.save(theirs, tmp_path)).eval()
    given = lukes.batch("ForMaskedLM", EVERY)
    labels = lukes.labels("ForMaskedLM", given)
    for change in ([0, 1, 1], [1, 1, 0], [0, 1, 0], [0, 0, 0]):  # a batch filled up more than is needed, or with holes
        there = given["entity_attention_mask"] * torch.tensor(change)
        one = given | {"entity_attention_mask": there}
        found, wanted = ours(**one), theirs(**one)
        assert found.entity_logits.shape == wanted.entity_logits.shape
        torch.testing.assert_close(
            found.entity_logits[there > 0], wanted.entity_logits[there > 0], atol=1e-5, rtol=1e-5
        )
        mask = given["attention_mask"] > 0
        torch.testing.assert_close(found.logits[mask], wanted.logits[mask], atol=1e-5, rtol=1e-5)
        labelled = {**labels, "entity_labels": labels["entity_labels"].where(there > 0, -100)}
        if change != [0, 0, 0]:  # where theirs is not a number
            torch.testing.assert_close(
                ours(**one, **labelled).loss, theirs(**one, **labelled).loss, atol=1e-5, rtol=1e-5
            )


def test_multi_label_targets(tmp_path: Path) -> None:
    theirs = lukes.build("ForEntityClassification")
    ours = from_hf(lukes.save(theirs, tmp_path)).eval()
    given, labels = lukes.batch("ForEntityClassification", EVERY), torch.eye(4)[:, :3].contiguous()
    found, wanted = (model(**given, labels=labels).loss for model in (ours, theirs))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_padded_entities_are_ignored_in_the_span_loss(tmp_path: Path) -> None:
    head = "ForEntitySpanClassification"
    theirs = lukes.build(head)
    ours = from_hf(lukes.save(theirs, tmp_path)).eval()
    given = lukes.batch(head, EVERY)
    there = given["entity_attention_mask"] > 0
    torch.manual_seed(3)
    labels = torch.randint(0, 2, (*there.shape, 3)).float()
    logits = theirs(**given).logits
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(logits[there], labels[there])
    torch.testing.assert_close(ours(**given, labels=labels).loss, wanted, atol=1e-5, rtol=1e-5)
    packed = {name: part for name, part in given.items() if name not in PADDED} | {"entities": lukes.packed(given)}
    torch.testing.assert_close(ours(**packed, labels=labels).loss, wanted, atol=1e-5, rtol=1e-5)
    none = given | {"entity_attention_mask": torch.zeros_like(given["entity_attention_mask"])}
    assert ours(**none, labels=labels).loss == 0


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_sequence_classification_has_one_dropout(family: str, tmp_path: Path) -> None:
    theirs = lukes.build("ForSequenceClassification")
    made = HEADS["ForSequenceClassification"][family].from_pretrained(lukes.save(theirs, tmp_path)).eval()
    calls: list[int] = []
    for part in made.modules():
        if isinstance(part, torch.nn.Dropout):
            part.register_forward_hook(lambda *_: calls.append(1))
    made(**lukes.batch())
    counted = len(calls)
    calls.clear()
    getattr(made, made.base_model_prefix)(**lukes.batch())
    assert counted - len(calls) == 1


def test_files_of_transformers_4_tie_the_word_decoder(tmp_path: Path) -> None:
    theirs = lukes.build("ForMaskedLM")
    theirs.lm_head.decoder.weight = theirs.luke.embeddings.word_embeddings.weight
    weights = {name: part.clone() for name, part in theirs.state_dict().items() if "decoder" not in name}
    weights["luke.embeddings.position_ids"] = torch.arange(40)[None]
    theirs.config.architectures = ["LukeForMaskedLM"]
    theirs.config.save_pretrained(tmp_path)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    compare(from_hf(tmp_path).eval(), theirs, "ForMaskedLM")


def test_the_authors_files_have_neither_prefix_nor_queries(tmp_path: Path) -> None:
    theirs = lukes.build("ForMaskedLM", vocab_size=lukes.WORDS)
    for layer in theirs.luke.encoder.layer:
        for name in ("w2e", "e2w", "e2e"):
            getattr(layer.attention.self, f"{name}_query").load_state_dict(layer.attention.self.query.state_dict())
    theirs.lm_head.decoder.weight = theirs.luke.embeddings.word_embeddings.weight
    kept = {name.removeprefix("luke."): part for name, part in theirs.state_dict().items() if "2e_" not in name}
    kept = {name: part.clone() for name, part in kept.items() if "2w_" not in name and "decoder" not in name}
    torch.save(kept, tmp_path / "pytorch_model.bin")
    settings = theirs.config.to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    more = ("max_position_embeddings", "type_vocab_size", "entity_vocab_size", "entity_emb_size")
    about = {name: settings[name] for name in (*names, *more)} | {"bert_model_name": "roberta-base"}
    (tmp_path / "metadata.json").write_text(json.dumps({"model_config": about, "max_mention_length": 30}))
    vocabulary = ["[PAD]", "[UNK]", "[MASK]", *(f"Entity {number}" for number in range(7)), "[MASK2]"]
    (tmp_path / "entity_vocab.tsv").write_text("".join(f"{name}\t0\n" for name in vocabulary))
    with torch.no_grad():
        rows = theirs.luke.entity_embeddings.entity_embeddings.weight
        rows[10] = rows[2]
    compare(from_hf(tmp_path).eval(), theirs, "ForMaskedLM")
    assert type(from_hf(tmp_path, "Model")).__name__ == "LukeRobertaModel"
    about["bert_model_name"] = "xlm-roberta-base"  # mLUKE's say no more than that
    (tmp_path / "metadata.json").write_text(json.dumps({"model_config": about}))
    assert type(from_hf(tmp_path, "Model")).__name__ == "LukeXLMRobertaModel"


def test_mluke_has_the_family_xlm_roberta(tmp_path: Path) -> None:
    theirs = lukes.build("ForMaskedLM")
    lukes.save(theirs, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MLukeTokenizer"}')
    ours = from_hf(tmp_path).eval()
    assert ours.config.model_type == "infused-xlm-roberta"
    compare(ours, theirs, "ForMaskedLM")


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    theirs = lukes.build()
    lukes.save(theirs, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    files = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(weights)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in weights if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    compare(from_hf(tmp_path).eval(), theirs, "Model")


@pytest.mark.parametrize(
    "head", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_an_infused_bert_becomes_a_luke_of_transformers(head: str, tmp_path: Path) -> None:
    ours = infuse(infused.build("Bert", head, pad_token_id=0), [LukeConfig(entities=11, dim=6, predicts=True)])
    infused.shake(ours)
    to_hf(ours, tmp_path / "theirs")
    theirs = getattr(transformers, f"Luke{head}").from_pretrained(tmp_path / "theirs").eval()
    given = lukes.batch(head, EVERY)
    given["input_ids"] = given["input_ids"] * given["attention_mask"]  # BERT pads with 0
    found, wanted = ours(**given), theirs(**given)
    mask = given["attention_mask"] > 0
    for name in ("last_hidden_state", "logits", "start_logits"):
        if name in wanted:
            one, other = found[name], wanted[name]
            one, other = (one[mask], other[mask]) if one.shape[:2] == mask.shape else (one, other)
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    again = load(tmp_path / "theirs").eval()
    assert type(again) is HEADS[head]["roberta"]


def test_conversion_keeps_tokenizer_and_vocabulary_both_ways(tmp_path: Path) -> None:
    theirs = lukes.build("ForEntityPairClassification")
    lukes.save(theirs, tmp_path / "theirs")
    EntityVocabulary.of_ids(f"Q{number}" for number in range(7)).save(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer_config.json").write_text('{"tokenizer_class": "LukeTokenizer"}')
    for one, other, says, *layout in (
        ("theirs", "ours", "load"),
        ("ours", "back", "AutoModel"),
        ("ours", "again", "AutoModel", "--layout", "hf"),
        ("back", "last", "load", "--layout", "wellread"),
    ):
        done = CliRunner().invoke(command, ["luke", str(tmp_path / one), "--to", str(tmp_path / other), *layout])
        assert done.exit_code == 0, done.output
        assert says in done.output
        assert (tmp_path / other / "tokenizer_config.json").exists()
        assert len(EntityVocabulary.load(tmp_path / other)) == 11
    compare(load(tmp_path / "ours").eval(), theirs, "ForEntityPairClassification")
    back = type(theirs).from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(back[name], weight) for name, weight in theirs.state_dict().items())
    assert isinstance(AutoModel.from_pretrained(tmp_path / "back"), transformers.LukeModel)


def test_converting_to_the_same_layout_raises_an_error(tmp_path: Path) -> None:
    lukes.save(lukes.build(), tmp_path / "theirs")
    with pytest.raises(UsageError, match="has the layout hf already; copy it, or convert it to the layout wellread"):
        convert_luke(tmp_path / "theirs", tmp_path / "new", "hf")
    assert convert_luke(tmp_path / "theirs", tmp_path / "ours", "wellread") == "wellread"
    with pytest.raises(UsageError, match="has the layout wellread already; copy it, or convert it to the layout hf"):
        convert_luke(tmp_path / "ours", tmp_path / "new", "wellread")
    assert not (tmp_path / "new").exists()


def pieces_of(family: str) -> Tokenizer:
    if family == "Bert":
        return TOKENIZER
    theirs = byte_pairs() if family == "Roberta" else sentence_pieces()
    theirs.backend_tokenizer.no_padding()
    return theirs.backend_tokenizer


@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta"])
def test_transformers_tokenizes_for_a_converted_model_as_we_do(family: str, tmp_path: Path) -> None:
    tokenizer = pieces_of(family)
    plain = infused.build(family, vocab_size=tokenizer.get_vocab_size())
    lukes.save(infuse(plain, [LukeConfig(entities=11, dim=6)]), tmp_path / "ours")
    tokenizer.save(str(tmp_path / "ours" / "tokenizer.json"))
    EntityVocabulary.of_ids(f"Q{number}" for number in range(7)).save(tmp_path / "ours")
    convert_luke(tmp_path / "ours", tmp_path / "theirs")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    texts = ("who is the mayor of Avon?", "Beyonc\u00e9 lives in Los Angeles.")
    for given in (texts[:1], texts[1:], texts):
        found, wanted = theirs(*given), tokenizer.encode(*given)
        assert found["input_ids"] == wanted.ids
        if family == "Bert":
            assert found["token_type_ids"] == wanted.type_ids
    assert tokenizer.token_to_id(theirs.pad_token) == theirs.pad_token_id
    assert tokenizer.token_to_id(theirs.mask_token) == theirs.mask_token_id
    if family != "Bert":
        assert theirs(texts[1], entities=["Q3"], entity_spans=[(0, 7)])["entity_ids"] == [7]
    assert load(tmp_path / "theirs").config.model_type == f"infused-{'xlm-' if family[0] == 'X' else ''}roberta"


def test_a_vocabulary_in_the_settings_of_a_tokenizer_becomes_a_file(tmp_path: Path) -> None:
    lukes.save(lukes.build(), tmp_path / "theirs")
    byte_pairs().save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "entity_vocab.json").exists()
    for one, other in (("theirs", "ours"), ("ours", "back")):
        convert_luke(tmp_path / one, tmp_path / other)
        assert json.loads((tmp_path / other / "entity_vocab.json").read_text())["Los Angeles"] == 5
        assert "entity_vocab" not in json.loads((tmp_path / other / "tokenizer_config.json").read_text())
    again = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert again("Los Angeles", entities=["Los Angeles"], entity_spans=[(0, 11)])["entity_ids"] == [5]


@pytest.mark.parametrize("second", [True, False], ids=["with [MASK2]", "without"])
def test_masks_follow_a_lite_vocabulary(second: bool, tmp_path: Path) -> None:
    names = ["[MASK]", "[UNK]", "[PAD]", *["[MASK2]"] * second]
    masks = (0, 3 if second else 0)
    lukes.save(lukes.build(entity_vocab_size=len(names)), tmp_path / "theirs")
    EntityVocabulary({name: row for row, name in enumerate(names)}).save(tmp_path / "theirs")
    assert masks_of(from_hf(tmp_path / "theirs")) == masks_of(load(tmp_path / "theirs")) == masks
    convert_luke(tmp_path / "theirs", tmp_path / "ours")
    assert masks_of(load(tmp_path / "ours")) == masks_of(load_encoder(str(tmp_path / "ours"))) == masks
    convert_luke(tmp_path / "ours", tmp_path / "back")
    assert masks_of(load(tmp_path / "back")) == masks


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for write in (lambda: convert_luke(tmp_path, tmp_path / "full"), lambda: to_hf(None, tmp_path / "full")):
        with pytest.raises(UsageError, match="exists and is not empty"):
            write()


def test_a_folder_without_a_luke_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is not a configuration of a LUKE"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match="a model of type 'bert'"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "luke"}')
    with pytest.raises(InputError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path)


def test_weights_of_another_size_raise_an_error(tmp_path: Path) -> None:
    lukes.save(lukes.build(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for change, message in (({"num_hidden_layers": 4}, "lacks weights of its"), ({"hidden_size": 8}, "another size")):
        (tmp_path / "config.json").write_text(json.dumps(settings | change))
        with pytest.raises(InputError, match=message):
            load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="there is no head LukeForPoetry"):
        load(tmp_path, "ForPoetry")


def test_models_that_transformers_does_not_support_are_not_written(tmp_path: Path) -> None:
    luke = LukeConfig(entities=9)
    for model in (infuse(infused.build("Electra"), [luke]), infuse(infused.build(), [luke, KamConfig()])):
        with pytest.raises(UsageError, match="only BERT, RoBERTa and XLM-R with LUKE alone"):
            to_hf(model, tmp_path / "new")
    with pytest.raises(UsageError, match="words of transformers' LUKE attend to entities"):
        to_hf(infuse(infused.build(), [LukeConfig(entities=9, seen=False)]), tmp_path / "new")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("ForEntityClassification", "needs 1 or more entities per text"),
        ("ForEntityPairClassification", "needs 2 or more entities per text"),
    ],
)
def test_entity_heads_need_entities(head: str, message: str, tmp_path: Path) -> None:
    ours = from_hf(lukes.save(lukes.build(head), tmp_path)).eval()
    given = {name: part for name, part in lukes.batch().items() if not name.startswith("entity")}
    with pytest.raises(UsageError, match=message):
        ours(**given)


def test_the_span_head_needs_token_positions(tmp_path: Path) -> None:
    ours = from_hf(lukes.save(lukes.build("ForEntitySpanClassification"), tmp_path)).eval()
    with pytest.raises(UsageError, match="give entity_start_positions"):
        ours(**lukes.batch())
