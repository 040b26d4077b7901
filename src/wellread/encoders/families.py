"""Names of the parts of each supported encoder family, as transformers has them.

One table for all torch code that looks inside an encoder: infusion (`encoders.infusion`) and knowledge layers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """Names of an encoder family's classes and submodules; paths are relative to a layer unless noted."""

    name: str
    """Prefix of the family's classes, e.g. "Bert" of BertModel."""
    layers: str = "encoder.layer"
    """Path of the list of layers, relative to the encoder."""
    attention: str = "attention.self"
    """Path of the self-attention module."""
    projections: tuple[str, str, str] = ("query", "key", "value")
    """Names of the query, key and value projections, relative to the self-attention module."""
    has_token_types: bool = True
    """The embeddings take token_type_ids."""
    has_entity_attention: bool = True
    """The self-attention module can be replaced by an entity-aware one; otherwise it also computes unused queries."""


FAMILIES = {
    "bert": EncoderFamily("Bert"),
    "roberta": EncoderFamily("Roberta"),
    "xlm-roberta": EncoderFamily("XLMRoberta"),
    "electra": EncoderFamily("Electra"),
    "distilbert": EncoderFamily(
        "DistilBert",
        layers="transformer.layer",
        attention="attention",
        projections=("q_lin", "k_lin", "v_lin"),
        has_token_types=False,
        has_entity_attention=False,
    ),
}
"""Supported families by transformers' model type. MiniLM checkpoints are of the family "bert" or "xlm-roberta"."""
