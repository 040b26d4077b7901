"""Tables of entity vectors: what is projected once is what is projected in every batch, and memory is shared."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.infused_models import shake
from tests.knowbert_data import ENTITIES, KINDS, RAW, table
from wellread.errors import UsageError
from wellread.io.arrays import map_arrays, save_arrays
from wellread.models.knowbert import entity_tables as tables
from wellread.models.knowbert.entity_tables import EntityProjection, EntityTable

ASKED = torch.tensor([[3, 5, -1], [5, -2, 19], [-1, -1, -1], [0, 3, 3]])


def make(dim: int = 4, **options: Any) -> EntityProjection:
    torch.manual_seed(0)
    projection = EntityProjection(RAW, dim, **options)
    nn.init.normal_(projection.mask)
    shake(projection, 0.3)
    projection.take(table())
    return projection


def vectors_of(projection: EntityProjection) -> torch.Tensor:
    vectors, rows = projection.look_up(ASKED)
    assert torch.equal(rows == -1, ASKED == -1)
    return vectors[rows.clamp(min=0)] * (rows >= 0)[..., None]


OPTIONS: dict[str, dict[str, Any]] = {
    "projected": {},
    "with kinds": {"kinds": KINDS, "kind_width": 2},
    "as they are": {"project": False, "dim": RAW},
}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["float64", "float32", "bfloat16"]
)
@pytest.mark.parametrize("kept", ["in memory", "mapped", "without a name"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_projected_once_is_what_is_projected_in_training(
    options: dict[str, Any], kept: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_ROWS", 7)
    if kept != "in memory":
        monkeypatch.setattr(tables, "SMALL", 0)
    projection = make(**options).to(dtype)
    projection.take(table(folder=tmp_path if kept == "mapped" else None, fingerprint="one"))
    wanted = vectors_of(copy.deepcopy(projection).train())
    with torch.no_grad():
        got = vectors_of(projection.eval())
    exact = {"atol": 1e-12, "rtol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(got, wanted, **exact)
    assert got.dtype == dtype
    assert not bool(wanted[2].any())
    assert torch.equal(wanted[0, 1], wanted[1, 0])
    assert len(list(tmp_path.iterdir())) == (kept == "mapped")


def test_training_projects_only_distinct_entities() -> None:
    projection = make().train()
    seen = []
    projection.linear.register_forward_hook(lambda module, given, made: seen.append(len(made)))
    vectors, _ = projection.look_up(ASKED)
    assert seen == [4]
    assert len(vectors) == 5
    vectors.sum().backward()
    assert projection.linear.weight.grad is not None


def test_the_table_is_made_once_and_anew_when_weights_change() -> None:
    projection = make().eval()
    seen = []
    projection.linear.register_forward_hook(lambda module, given, made: seen.append(len(made)))
    with torch.no_grad():
        first = vectors_of(projection)
        assert torch.equal(vectors_of(projection), first)
        assert seen == [ENTITIES]
        projection.linear.weight.mul_(1.5)
        second = vectors_of(projection)
        assert seen == [ENTITIES] * 2
        projection.train()
        projection.linear.weight.data.mul_(2)  # which torch does not count as a change
        projection.eval()
        third = vectors_of(projection)
        projection.train().eval()
        vectors_of(projection)
    assert seen == [ENTITIES] * 3
    assert not torch.allclose(first, second)
    assert not torch.allclose(second, third)


def test_changed_weights_are_noticed_in_every_way_of_changing_them() -> None:
    projection = make().eval()
    with torch.no_grad():
        before = vectors_of(projection)
    for part in projection.modules():  # as who wants to keep the modes of parts does
        part.training = True
    vectors_of(projection)
    projection.linear.weight.data.mul_(2)
    for part in projection.modules():
        part.training = False
    with torch.no_grad():
        assert not torch.allclose(vectors_of(projection), before)


def test_training_leaves_no_table_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL", 0)
    projection = make().train()
    projection.take(table(folder=tmp_path, fingerprint="one"))
    with torch.no_grad():
        in_training = vectors_of(projection)
        assert torch.allclose(vectors_of(projection.eval()), in_training)
    assert not list(tmp_path.iterdir())


def test_gradients_in_evaluation_mode_project_the_batch() -> None:
    projection = make().eval()
    vectors_of(projection).sum().backward()
    assert bool((projection.linear.weight.grad != 0).any())
    projection.requires_grad_(False)
    assert len(projection.look_up(ASKED)[0]) == ENTITIES + 1


def test_a_large_table_is_written_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL", 0)
    projection = make().eval()
    projection.take(table(folder=tmp_path, fingerprint="one"))
    with torch.no_grad():
        wanted = vectors_of(projection)
        (written,) = tmp_path.iterdir()
        made = written.stat().st_mtime_ns
        other = copy.deepcopy(projection)
        other.linear.register_forward_hook(lambda *_: pytest.fail("it was made again"))
        assert torch.equal(vectors_of(other), wanted)
        assert written.stat().st_mtime_ns == made
        fourth = copy.deepcopy(projection)
        written.write_bytes(written.read_bytes()[:50])
        assert torch.equal(vectors_of(fourth), wanted)  # made anew, for it was damaged
        assert written.stat().st_size > 50


def test_tables_of_former_weights_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL", 0)
    projection = make().eval()
    projection.take(table(folder=tmp_path, fingerprint="one"))
    names = set()
    with torch.no_grad():
        for _ in range(3):
            vectors_of(projection)
            (written,) = tmp_path.iterdir()
            names.add(written.name)
            projection.linear.bias.add_(1)
    assert len(names) == 3


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL", 0)
    (tmp_path / "file").write_text("")
    projection = make().eval()
    with torch.no_grad():
        wanted = vectors_of(projection)
        projection.take(table(folder=tmp_path / "file", fingerprint="one"))
        assert torch.equal(vectors_of(projection), wanted)


def test_other_vectors_have_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SMALL", 0)
    projection = make().eval()
    digests = set()
    for fingerprint in ("one", "two"):
        projection.take(table(folder=tmp_path, fingerprint=fingerprint))
        digests.add(projection.digest())
    digests.add(projection.double().digest())
    assert len(digests) == 3


def test_vectors_are_neither_weights_nor_copied() -> None:
    projection = make(kinds=KINDS, kind_width=2)
    assert set(projection.state_dict()) == {
        "mask",
        "kinds.weight",
        "linear.weight",
        "linear.bias",
        "norm.weight",
        "norm.bias",
    }
    assert copy.deepcopy(projection).table is projection.table


def test_mapped_vectors_are_taken_as_they_lie(tmp_path: Path) -> None:
    save_arrays(tmp_path / "some", {"vectors": table().vectors.astype(np.float16)}, {})
    mapped = EntityTable(map_arrays(tmp_path / "some")["vectors"])
    vectors, kinds = mapped.take(torch.tensor([4, 2]), torch.float64)
    assert kinds is None
    assert torch.equal(vectors, torch.tensor(table().vectors.astype(np.float16)[[4, 2]]).double())
    whole = torch.cat([block for block, _ in mapped.blocks(torch.device("cpu"), torch.float32)])
    assert whole.shape == (ENTITIES, RAW)


def test_what_does_not_fit_is_said() -> None:
    projection = EntityProjection(RAW, 4, kinds=KINDS, kind_width=2)
    with pytest.raises(UsageError, match="the entity vectors have 5 numbers, the model expects 6"):
        projection.take(table(5))
    with pytest.raises(UsageError, match="give the table the kind of each entity"):
        projection.take(EntityTable(table().vectors))
    with pytest.raises(UsageError, match="the table has the kind 2, the model knows 2 from 0"):
        EntityProjection(RAW, 4, kinds=2, kind_width=2).take(table())
    with pytest.raises(UsageError, match="give it some with take"):
        projection.look_up(ASKED)
    with pytest.raises(UsageError, match="there are 3 kinds for 20 entities"):
        EntityTable(table().vectors, np.zeros(3, np.uint8))
    projection.take(table())
    with pytest.raises(UsageError, match="rows -1 to 20 of the entity vectors, which have 20"):
        projection.look_up(torch.tensor([[20, -1]]))
