"""Quantization: 8-bit entities agree with the projection and can be extended; 4-bit matrices lose little."""

import numpy as np
import pytest
import torch

from tests.infused_models import shake
from wellread.errors import InputError, UsageError
from wellread.models.knowbert.entity_tables import EntityProjection, EntityTable
from wellread.models.knowbert.quantization import GROUP, Int8Entities, Int8EntityTable, decode_4bit, encode_4bit

IDS = [f"e{number}" for number in range(50)]


@pytest.fixture
def projection():
    torch.manual_seed(0)
    made = EntityProjection(6, 8, kinds=3, kind_width=2)
    torch.nn.init.normal_(made.mask)
    shake(made)
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(50, 6)).astype(np.float16)
    made.take(EntityTable(vectors, draw.integers(0, 3, 50)))
    return made.eval().requires_grad_(False)


def looked_up(entities, wanted):
    vectors, rows = entities.look_up(wanted)
    found = vectors[rows.clamp(min=0)]
    return torch.where(rows[..., None] >= 0, found, torch.zeros(()))


def test_the_table_is_the_projection_in_8_bits(projection, tmp_path):
    Int8EntityTable.build(projection, IDS, fingerprint="f", kinds="abc").save(tmp_path / "entities.safetensors")
    table = Int8EntityTable.load(tmp_path / "entities.safetensors")
    assert (len(table), table.dim, table.fingerprint, table.kinds) == (50, 8, "f", ("a", "b", "c"))
    assert sorted(table.rows_of(IDS).tolist()) == list(range(50))
    assert table.rows_of(["e3", "unknown", "e4"]).tolist()[1] == -1
    raw = torch.tensor([[3, 49, -1], [-2, 3, 0]])
    rows = torch.where(raw >= 0, torch.from_numpy(table.rows_of(IDS))[raw.clamp(min=0)], raw)
    expected = looked_up(projection, raw)
    found = looked_up(Int8Entities(table, projection), rows)
    assert (found - expected).abs().max() < 0.01 * expected.abs().max()
    assert (found[0, 0] - expected[0, 0]).abs().max() > 0  # it is rounded


def test_added_entities_are_projected(projection):
    added = Int8Entities(Int8EntityTable.build(projection, IDS), projection)
    vectors = torch.randn(2, 6)
    rows = added.add(vectors, torch.tensor([2, 0]))
    assert rows.tolist() == [50, 51]
    expected = projection.norm(projection._project(vectors, torch.tensor([2, 0])))
    torch.testing.assert_close(looked_up(added, torch.tensor([[51, -2, 50]]))[0, [2, 0]], expected)
    added.clear_added()
    with pytest.raises(UsageError, match="rows 51 to 51 of entities, of which there are 50"):
        added.look_up(torch.tensor([[51]]))


def test_without_candidates_there_is_nothing_to_look_up(projection):
    vectors, rows = Int8Entities(Int8EntityTable.build(projection, IDS), projection).look_up(torch.zeros(0, 3).long())
    assert (vectors.shape, rows.shape) == ((1, 8), (0, 3))


def test_a_million_ids_would_have_longer_hashes(projection, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "wellread.models.knowbert.quantization._key", lambda id, width: int(id[1:]) if width == 8 else 7
    )
    table = Int8EntityTable.build(projection, IDS)
    table.save(tmp_path / "t")
    assert (table.width, Int8EntityTable.load(tmp_path / "t").rows_of(["e7", "e49"]).tolist()) == (8, [7, 49])


def test_wordnet_fits_into_ten_mebibytes():
    rows, dim = 117_659, 80
    assert rows * (dim + 2 + 5) < 10 << 20


@pytest.mark.parametrize("damage", ["cut", "other", "none"])
def test_a_damaged_table_says_so(projection, tmp_path, damage):
    path = tmp_path / "entities.safetensors"
    if damage != "none":
        Int8EntityTable.build(projection, IDS).save(path)
        data = path.read_bytes()
        path.write_bytes(data[:-9] if damage == "cut" else data.replace(b"ready entities 1", b"ready entities 9"))
    with pytest.raises(InputError, match="copy the linker's folder again"):
        Int8EntityTable.load(path)


def test_ids_and_vectors_must_be_as_many(projection):
    with pytest.raises(UsageError, match="49 ids for 50 entity vectors"):
        Int8EntityTable.build(projection, IDS[1:])
    with pytest.raises(UsageError, match="given twice"):
        Int8EntityTable.build(projection, ["e1"] * 50)


@pytest.mark.parametrize("shape", [(5, 128), (3, 100), (2, 1), (4, GROUP), (1, GROUP + 1)])
def test_a_matrix_comes_back_nearly(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64) * 0.01
    codes, scales = encode_4bit(matrix)
    groups = -(-shape[1] // GROUP)
    assert codes.shape == (shape[0], groups * GROUP // 2)
    assert codes.dtype == torch.uint8
    assert scales.shape == (shape[0], groups)
    assert scales.dtype == torch.float16
    back = decode_4bit(codes, scales, shape[1])
    assert back.shape == shape
    assert float((back - matrix).norm() / matrix.norm()) < 0.12


def test_what_is_a_code_is_kept_exactly():
    matrix = torch.arange(-7.0, 8.0).repeat(2, 5) * 0.125
    assert torch.equal(decode_4bit(*encode_4bit(matrix), matrix.shape[1]), matrix)


def test_nothing_stays_nothing():
    assert not decode_4bit(*encode_4bit(torch.zeros(2, 70)), 70).any()


def test_one_large_number_spoils_only_its_group():
    torch.manual_seed(0)
    matrix = torch.randn(1, 2 * GROUP)
    matrix[0, 0] = 1000.0
    back = decode_4bit(*encode_4bit(matrix), 2 * GROUP)
    assert float(back[0, 0]) == pytest.approx(1000.0, rel=0.01)
    assert float((back - matrix)[:, GROUP:].norm() / matrix[:, GROUP:].norm()) < 0.12


def test_scales_lose_less_than_the_largest_number_would():
    torch.manual_seed(0)
    matrix = torch.randn(64, 4 * GROUP)
    largest = matrix.view(64, 4, GROUP).abs().amax(-1, keepdim=True) / 7
    plain = ((matrix.view(64, 4, GROUP) / largest).round() * largest).view_as(matrix)
    assert (decode_4bit(*encode_4bit(matrix), 4 * GROUP) - matrix).norm() < 0.95 * (plain - matrix).norm()


def test_numbers_too_small_for_a_scale_become_nothing():
    assert decode_4bit(*encode_4bit(torch.full((1, GROUP), 1e-9)), GROUP).abs().max() < 1e-6
