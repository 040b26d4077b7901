"""The authors' checkpoints for entity disambiguation, the candidate loss, and unknown weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from tests import luke_models as lukes
from tests.toy_models import tokenizer, write_kb
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import InputError, UsageError
from wellread.kb.records import Entity
from wellread.linking.linker import Linker
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.conversion import convert_luke, from_hf, load, to_hf
from wellread.models.luke.heads import HEADS
from wellread.models.luke.model import candidate_loss, luke_of
from wellread.models.luke.vocabulary import EntityVocabulary

HEAD = "ForEntityDisambiguation"
CANDIDATES = torch.tensor([[[3, 5, 1, 1, 0], [4, 0, 0, 0, 0], [10, 9, 8, 7, 6]]] * 4)
"""Padded with 0; [UNK] occurs twice."""


def masked() -> dict[str, torch.Tensor]:
    """Return a batch in which some entities are [MASK]."""
    given = lukes.batch(counts=(3, 3, 3, 3))
    given["entity_ids"][:, :2] = 2
    return given


def their_scores(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of the authors' head: all rows, -1e32 for those that are not candidates."""
    logits = model(**given).entity_logits
    candidate_mask = torch.zeros(logits.shape, dtype=torch.bool).scatter(2, CANDIDATES, CANDIDATES != 0)
    return logits.masked_fill(~candidate_mask, -1e32)


@pytest.mark.parametrize("named", [True, False], ids=["architectures", "no architectures"])
@pytest.mark.parametrize("prefix", ["luke.", ""])
def test_a_checkpoint_of_the_authors_gives_their_scores_and_loss(tmp_path: Path, named: bool, prefix: str) -> None:
    theirs, _ = lukes.build_disambiguation(tmp_path / "theirs", named=named, prefix=prefix)
    given = masked()
    wanted = their_scores(theirs, given)
    labels = torch.tensor([[5, 4, 8], [1, -1, 10], [3, 4, -1], [-1, -1, 6]])
    loss = cross_entropy(wanted.flatten(0, 1), labels.flatten(), ignore_index=-1)
    ours = from_hf(tmp_path / "theirs").eval()
    assert type(ours).__name__ == "LukeBertForEntityDisambiguation"
    lukes.save(ours, tmp_path / "ours")
    to_hf(ours, tmp_path / "back")
    for model in (ours, load(tmp_path / "ours").eval(), from_hf(tmp_path / "back").eval()):
        found = model(**given, entity_candidate_ids=CANDIDATES, labels=labels)
        torch.testing.assert_close(found.logits, wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.loss, loss, atol=1e-5, rtol=1e-5)
        every, all_rows = model(**given), [row for row in range(lukes.ENTITIES) if row != 2]
        torch.testing.assert_close(
            every.logits[..., all_rows], theirs(**given).entity_logits[..., all_rows], atol=1e-5, rtol=1e-5
        )
    back, first = (load_file(tmp_path / folder / "model.safetensors") for folder in ("back", "theirs"))
    mask = "entity_embeddings.mask_embedding"
    assert torch.equal(back[f"luke.{mask}"], first[f"{prefix}{mask}"])
    assert back["luke.embeddings.position_embeddings.weight"].shape == (40, lukes.WIDTH)


def test_an_entity_whose_label_is_not_a_candidate_is_ignored_in_the_loss(tmp_path: Path) -> None:
    lukes.build_disambiguation(tmp_path)
    ours, given = from_hf(tmp_path).eval(), masked()
    labels = torch.full((4, 3), -1)
    labels[0, 0] = 5
    one = ours(**given, entity_candidate_ids=CANDIDATES, labels=labels).loss
    labels[1, 1] = 9  # whose only candidate is 4
    assert ours(**given, entity_candidate_ids=CANDIDATES, labels=labels).loss == one
    labels[0, 0] = -1
    nothing = ours(**given, entity_candidate_ids=CANDIDATES, labels=labels).loss
    nothing.backward()
    assert nothing == 0


def test_the_candidate_loss_equals_a_naive_loop() -> None:
    rows, gold = torch.tensor([[4, 2, -1], [7, -1, -1], [1, 3, 5]]), torch.tensor([2, 7, 6])
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).masked_fill(rows < 0, -torch.inf)
    wanted = (-(scores[0, 1] - scores[0, :2].logsumexp(0)) + 0.0) / 2
    torch.testing.assert_close(candidate_loss(scores, rows, gold), wanted)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_any_luke_can_be_tuned_among_candidates_but_not_written_as_the_authors_bert(
    family: str, tmp_path: Path
) -> None:
    theirs = lukes.build("ForMaskedLM")
    ours = HEADS[HEAD][family].from_pretrained(lukes.save(theirs, tmp_path / "theirs")).eval()
    given = lukes.batch(counts=(3, 3, 3, 3))
    found = ours(**given, entity_candidate_ids=CANDIDATES).logits
    torch.testing.assert_close(found, their_scores(theirs, given), atol=1e-5, rtol=1e-5)
    with pytest.raises(UsageError, match="is a BERT, not a"):
        to_hf(ours, tmp_path / "back")


def test_a_converted_checkpoint_links(tmp_path: Path) -> None:
    vocabulary = len(tokenizer().get_vocab())
    entities = [Entity(f"q{number}", f"Entity {number}", "", "thing", 1, {"cork": number + 1}) for number in range(3)]
    lukes.WORDS, before = vocabulary, lukes.WORDS
    try:
        lukes.build_disambiguation(tmp_path / "theirs")
    finally:
        lukes.WORDS = before
    tokenizer().save(str(tmp_path / "theirs" / "tokenizer.json"))
    assert EntityVocabulary.load(tmp_path / "theirs").rows_of(["Entity 0"]).tolist() == [3]
    assert convert_luke(tmp_path / "theirs", tmp_path / "ours") == "wellread"
    with write_kb(tmp_path / "toy.kb", entities) as kb:
        (link,) = Linker.load(kb, tmp_path / "ours", trust=0.0).link("in cork").links
    assert {one.entity for one in link.candidates} == {"q0", "q1", "q2"}


# weights that no LUKE has


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("luke.adapter.weight", "weights that no LUKE has: adapter.weight"),
        ("luke.entity_embeddings.extra", "does not have: roberta.entity_embeddings.extra"),
        ("luke.encoder.layer.0.attention.self.gate.weight", "attention.self.gate.weight"),
    ],
)
@pytest.mark.parametrize("head", ["Model", "ForEntityClassification"])
def test_unknown_weights_raise_an_error_that_names_them(tmp_path: Path, name: str, says: str, head: str) -> None:
    lukes.save(lukes.build(head), tmp_path / "it")
    weights = load_file(tmp_path / "it" / "model.safetensors")
    name = name if head != "Model" else name.removeprefix("luke.")
    save_file(weights | {name: torch.zeros(3)}, tmp_path / "it" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="it has ") as caught:
        convert_luke(tmp_path / "it", tmp_path / "new")
    assert says.replace("roberta.", "" if head == "Model" else "roberta.") in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_other_heads_of_a_checkpoint_are_skipped(tmp_path: Path) -> None:
    lukes.save(lukes.build("ForMaskedLM"), tmp_path)
    assert type(load(tmp_path, "Model")).__name__ == "LukeRobertaModel"


def test_a_mask_vector_of_another_size_raises_an_error(tmp_path: Path) -> None:
    lukes.build_disambiguation(tmp_path)
    file = tmp_path / "model.safetensors"
    name = "luke.entity_embeddings.mask_embedding"
    save_file(load_file(file) | {name: torch.zeros(5)}, file)
    with pytest.raises(InputError, match=r"a \[MASK\] of 5 numbers"):
        from_hf(tmp_path)
    with pytest.raises(InputError, match="family bert"):
        HEADS[HEAD]["roberta"].from_pretrained(tmp_path)


def test_a_model_without_an_entity_head_cannot_score_candidates() -> None:
    bert = lukes.transformers.BertModel(
        lukes.transformers.BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12
        )
    )
    model = infuse(bert, [LukeConfig(entities=5, dim=4)])
    with pytest.raises(UsageError, match="predicts = true"):
        luke_of(model).predict_among(torch.zeros(1, 8), torch.tensor([[1]]))
