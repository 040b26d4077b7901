"""Entity table: rows copied from another model, and rows initialised with vectors."""

import numpy as np
import pytest
import torch

from tests.task_models import tiny_encoder
from wellread.encoders.infusion.infuse import infuse
from wellread.errors import UsageError
from wellread.models.luke.config import LukeConfig
from wellread.models.luke.model import carry_over, copy_mask, luke_in, same_rows, start_table
from wellread.models.luke.vocabulary import EntityVocabulary


def luke(entities=6, seed=0, **options):
    torch.manual_seed(seed)
    return luke_in(infuse(tiny_encoder(), [LukeConfig(entities=entities, dim=8, **options)]))


def test_a_plain_encoder_has_no_entity_table():
    assert luke_in(tiny_encoder()) is None
    assert luke_in(tiny_encoder(knowing=True)) is None
    assert luke() is not None


def test_trained_weights_are_copied_and_new_rows_keep_their_initial_values():
    old, made = luke(predicts=True, aware=False), luke(9, seed=1, predicts=True)
    with torch.no_grad():
        for weight in old.parameters():
            weight.normal_()
    fresh = {name: weight.clone() for name, weight in made.state_dict().items()}
    assert carry_over(made, old) == []
    for name, weight in old.state_dict().items():
        found = made.state_dict()[name]
        assert torch.equal(found[: len(weight)], weight), name
    assert torch.equal(made.table.weight[6:], fresh["table.weight"][6:])
    assert torch.equal(made.prediction.bias[6:], fresh["prediction.bias"][6:])
    queries = [name for name in fresh if name.startswith("queries")]
    assert queries
    assert all(torch.equal(made.state_dict()[name], fresh[name]) for name in queries)


def test_weights_without_counterpart_are_returned():
    left = carry_over(luke(aware=False), luke(aware=True, predicts=True))
    assert {name.partition(".")[0] for name in left} == {"queries", "prediction"}


def test_a_table_of_another_size_raises_an_error():
    with pytest.raises(UsageError, match="has 6 rows, more than the 5 of the vocabulary"):
        carry_over(luke(5), luke())
    other = luke_in(infuse(tiny_encoder(), [LukeConfig(entities=6, dim=4)]))
    with pytest.raises(UsageError, match="rows of 8 numbers; set dim = 8"):
        carry_over(other, luke())


def test_rows_are_copied_by_name():
    theirs = EntityVocabulary.of_ids(["a", "b", "c"])
    ours = EntityVocabulary.of_ids(["c", "x", "a"])
    old, made = luke(len(theirs), predicts=True), luke(len(ours), seed=1, predicts=True)
    before = made.table.weight.detach().clone()
    assert carry_over(made, old, same_rows(ours, theirs)) == []
    for name, row in ours.row_of.items():
        expected = old.table.weight[theirs.row_of[name]] if name in theirs else before[row]
        assert torch.equal(made.table.weight[row], expected), name
    assert torch.equal(made.prediction.bias[4], old.prediction.bias[6])
    alone = EntityVocabulary({"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "a": 3})
    assert same_rows(ours, alone).tolist() == [[0, 0], [1, 1], [2, 2], [6, 3], [3, 2]]
    assert carry_over(luke(4), luke(9), same_rows(EntityVocabulary.of_ids(()), theirs)) == []


def test_rows_can_be_initialised_with_vectors():
    made = luke()
    before = made.table.weight.detach().clone()
    start_table(made, np.ones((2, 8), np.float32), np.array([5, 4]))
    assert (made.table.weight[4:] == 1).all()
    assert torch.equal(made.table.weight[:4], before[:4])
    copy_mask(made, EntityVocabulary.of_ids(["a", "b"]))
    assert torch.equal(made.table.weight[3], before[2])
