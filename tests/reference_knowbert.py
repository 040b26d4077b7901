"""KnowBERT as its authors' code computes it (allenai/kb): tiny random archives in their layout, and plain formulae.

Written from facts: names and shapes of weights, the order of steps, how batches are padded. In double precision.
"""

import json
import math
import tarfile

import torch
from torch.nn.functional import cross_entropy

HIDDEN, LAYERS, HEADS, INNER = 16, 3, 2, 20
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "é", "##a", "##é"]
SPECIAL = ["@@PADDING@@", "@@UNKNOWN@@"]
WIKI = [*SPECIAL, *(f"Place_{n}" for n in range(8)), "@@MASK@@", "@@NULL@@"]
WORDNET = [*SPECIAL, "dog.n.01", "frump.n.01", "able.a.01", "full.s.06", "run.v.01", "@@MASK@@", "@@NULL@@"]
POS = [0, 8, 1, 1, 3, 5, 2, 6, 7]
NAMES = {"wiki": WIKI, "wordnet": WORDNET}
MASKED, UNKNOWN = {"wiki": 10, "wordnet": 7}, 1
SIZES = {"wiki": (8, 2, 12), "wordnet": (12, 3, 18)}
"""Width, heads and inner width of a knowledge layer."""
RAW, POS_WIDTH, PRIOR_WIDTH = 10, 3, 6
LENGTHS = (7, 4, 9, 5)
MENTIONS = {  # by text: first and last piece, the authors' candidate ids, which is right
    "wiki": {
        0: [(1, 1, (2, 3, 4), 3), (1, 3, (5,), 5), (2, 5, (4, 6, 9, 2), 4)],
        1: [(0, 3, (MASKED["wiki"],), MASKED["wiki"])],
        2: [(4, 5, (UNKNOWN, 7), 7), (8, 8, (3, 2), WIKI.index("@@NULL@@"))],
    },
    "wordnet": {
        0: [(3, 3, (2, 3), 3)],
        2: [(0, 8, (4, 5, 6, 2, 3), 6), (2, 2, (MASKED["wordnet"],), MASKED["wordnet"]), (6, 7, (5,), 5)],
        3: [(1, 2, (6, UNKNOWN), 6)],
    },
}


def model_config(layers, swap=False, **linker):
    def block(kb):
        width, heads, inner = SIZES[kb]
        sizes = {"num_attention_heads": heads, "intermediate_size": inner}
        return {"hidden_size": width, "num_hidden_layers": 1} | sizes

    special = {
        "wiki": {"entity_embedding": {"embedding_dim": 8, "trainable": False}},
        "wordnet": {"concat_entity_embedder": {"type": "wordnet_all_embeddings"}},
    }
    special["wiki" if swap else "wordnet"]["loss_type"] = "softmax"
    return {
        "type": "knowbert",
        "bert_model_name": "bert-base-uncased",
        "soldered_layers": layers,
        "soldered_kgs": {
            kb: {
                "type": "soldered_kg",
                "should_init_kg_to_bert_inverse": False,
                "entity_linker": {
                    "type": "entity_linking_with_candidate_mentions",
                    "namespace": f"entity_{kb}",
                    "contextual_embedding_dim": HIDDEN,
                    "output_feed_forward_hidden_dim": PRIOR_WIDTH,
                    "span_encoder_config": block(kb),
                    **special[kb],
                    **linker,
                },
                "span_attention_config": block(kb),
            }
            for kb in layers
        },
    }


# The authors' model: names and shapes of its weights, and what is computed with them


def draw_state(kbs=("wiki", "wordnet"), seed=0, swap=False):
    draw = torch.Generator().manual_seed(seed)
    state = {}

    def put(name, *shape, around=0.0):
        state[name] = around + 0.25 * torch.randn(*shape, generator=draw)

    def put_linear(name, rows, columns):
        put(f"{name}.weight", rows, columns)
        put(f"{name}.bias", rows)

    def put_norm(name, width):
        put(f"{name}.weight", width, around=1.0)
        put(f"{name}.bias", width)

    def put_block(name, width, inner, attention="attention.self"):
        for part in ("query", "key", "value"):
            put_linear(f"{name}.{attention}.{part}", width, width)
        put_linear(f"{name}.attention.output.dense", width, width)
        put_norm(f"{name}.attention.output.LayerNorm", width)
        put_linear(f"{name}.intermediate.dense", inner, width)
        put_linear(f"{name}.output.dense", width, inner)
        put_norm(f"{name}.output.LayerNorm", width)

    bert = "pretrained_bert.bert"
    for name, rows in (("word", len(VOCAB)), ("position", 12), ("token_type", 2)):
        put(f"{bert}.embeddings.{name}_embeddings.weight", rows, HIDDEN)
    put_norm(f"{bert}.embeddings.LayerNorm", HIDDEN)
    for number in range(LAYERS):
        put_block(f"{bert}.encoder.layer.{number}", HIDDEN, INNER)
    put_linear(f"{bert}.pooler.dense", HIDDEN, HIDDEN)
    head = "pretrained_bert.cls"
    put(f"{head}.predictions.bias", len(VOCAB))
    put_linear(f"{head}.predictions.transform.dense", HIDDEN, HIDDEN)
    put_norm(f"{head}.predictions.transform.LayerNorm", HIDDEN)
    state[f"{head}.predictions.decoder.weight"] = state[f"{bert}.embeddings.word_embeddings.weight"]
    put_linear(f"{head}.seq_relationship", 2, HIDDEN)
    for name in list(state):
        if name.startswith(f"{head}."):
            state[name.replace(head, "pretraining_heads")] = state[name]
        if name.startswith(f"{bert}.pooler."):
            state[name.removeprefix(f"{bert}.")] = state[name]
    for kb in kbs:
        dim, _, inner = SIZES[kb]
        linker = f"{kb}_soldered_kg.entity_linker.disambiguator"
        put_linear(f"{linker}.span_extractor._global_attention._module", 1, dim)
        put_linear(f"{linker}.bert_to_kg_projector", dim, HIDDEN)
        put_norm(f"{linker}.projected_span_layer_norm", dim)
        put_norm(f"{linker}.kg_layer_norm", dim)
        if kb == "wordnet":
            entities = f"{linker}.entity_embeddings"
            put(f"{entities}.entity_embeddings.weight", len(WORDNET), RAW)
            put(f"{entities}.pos_embeddings.weight", len(WORDNET), POS_WIDTH)
            state[f"{entities}.entity_id_to_pos_index"] = torch.tensor(POS)
            put_linear(f"{entities}.proj_feed_forward", dim, RAW + POS_WIDTH)
        else:
            put(f"{linker}.entity_embeddings.weight", len(WIKI), dim)
        if kb == ("wordnet" if swap else "wiki"):
            put(f"{linker}.dot_attention_with_prior.null_embedding", dim)
        put_linear(f"{linker}.dot_attention_with_prior.out_layer_1", PRIOR_WIDTH, 2)
        put_linear(f"{linker}.dot_attention_with_prior.out_layer_2", 1, PRIOR_WIDTH)
        put_block(f"{linker}.span_encoder.layer.0", dim, inner)
        put_norm(f"{kb}_soldered_kg.weighted_entity_layer_norm", dim)
        put_block(f"{kb}_soldered_kg.span_attention_layer", dim, inner, attention="attention.attention")
        put_norm(f"{kb}_soldered_kg.output_layer_norm", HIDDEN)
        put_linear(f"{kb}_soldered_kg.kg_to_bert_projection", HIDDEN, dim)
    return state


class Reference:
    """States, scores and losses of padded batches as the authors compute them, in double precision."""

    def __init__(self, state, config):
        self.state = {name: part.double() if part.is_floating_point() else part for name, part in state.items()}
        self.config = config

    def linear(self, name, given):
        return given @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def norm(self, name, given, eps):
        apart = given - given.mean(-1, keepdim=True)
        scale = (apart.square().mean(-1, keepdim=True) + eps).sqrt()
        return apart / scale * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def block(self, name, heads, asking, attended, asked_mask, attention="attention.self"):
        """Transformer block; masked positions get 10,000 less before the softmax."""

        def split(part, given):
            return self.linear(f"{name}.{attention}.{part}", given).unflatten(-1, (heads, -1)).transpose(1, 2)

        query, key, value = split("query", asking), split("key", attended), split("value", attended)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        scores = scores - 10000 * (1 - asked_mask.double())[:, None, None, :]
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        mixed = self.linear(f"{name}.attention.output.dense", mixed)
        middle = self.norm(f"{name}.attention.output.LayerNorm", mixed + asking, 1e-12)
        wide = self.linear(f"{name}.intermediate.dense", middle)
        wide = self.linear(f"{name}.output.dense", wide * (1 + torch.erf(wide / math.sqrt(2))) / 2)
        return self.norm(f"{name}.output.LayerNorm", wide + middle, 1e-12)

    def entities(self, kb, ids):
        """Normed vectors of candidates, those that are only padding too."""
        linker = f"{kb}_soldered_kg.entity_linker.disambiguator"
        if kb == "wiki":
            found = self.state[f"{linker}.entity_embeddings.weight"][ids]
        else:
            own = f"{linker}.entity_embeddings"
            kinds = self.state[f"{own}.entity_id_to_pos_index"][ids]
            parts = (
                self.state[f"{own}.entity_embeddings.weight"][ids],
                self.state[f"{own}.pos_embeddings.weight"][kinds],
            )
            found = self.linear(f"{own}.proj_feed_forward", torch.cat(parts, -1))
        return self.norm(f"{linker}.kg_layer_norm", found, 1e-5)

    def pool(self, name, states, spans):
        """A softmax over the widest span, zeros where a span has no piece, then without these and to sum 1."""
        batch, count, _ = spans.shape
        widest = int((spans[:, :, 1] - spans[:, :, 0]).max()) + 1
        pooled = states.new_zeros(batch, count, states.shape[-1])
        for text in range(batch):
            for mention in range(count):
                first, last = spans[text, mention].tolist()
                tokens = [place for place in range(last, last - widest, -1) if place >= max(first, 0)]
                if first < 0:
                    continue
                logits = states.new_zeros(widest)
                logits[: len(tokens)] = self.linear(name, states[text, tokens])[:, 0]
                weights = logits.softmax(0)[: len(tokens)]
                pooled[text, mention] = (weights / (weights.sum() + 1e-13)) @ states[text, tokens]
        return pooled

    def layer(self, kb, states, inputs):
        spans, ids, priors, gold = inputs
        options = self.config["soldered_kgs"][kb]["entity_linker"]
        heads, mask = SIZES[kb][1], spans[:, :, 0] > -1
        name = f"{kb}_soldered_kg"
        linker = f"{name}.entity_linker.disambiguator"
        narrow = self.linear(f"{linker}.bert_to_kg_projector", states)
        pooled = self.pool(f"{linker}.span_extractor._global_attention._module", narrow, spans)
        pooled = self.norm(f"{linker}.projected_span_layer_norm", pooled, 1e-5)
        mentions = self.block(f"{linker}.span_encoder.layer.0", heads, pooled, pooled, mask)
        vectors = self.entities(kb, ids)
        similarity = (mentions[:, :, None] * vectors).sum(-1) / math.sqrt(vectors.shape[-1])
        wide = self.linear(f"{linker}.dot_attention_with_prior.out_layer_1", torch.stack((similarity, priors), -1))
        scores = self.linear(f"{linker}.dot_attention_with_prior.out_layer_2", wide.clamp(min=0))[..., 0]
        scores = torch.where(ids > 0, scores, -10000.0)
        margin = options.get("loss_type", "margin") == "margin"
        kept = scores
        if margin:
            below = scores < options.get("decode_threshold", 0.0)
            kept = torch.where(below, -10000.0, scores)
        mixed = (kept.softmax(-1)[..., None] * vectors).sum(2)
        if margin:
            null = self.state[f"{linker}.dot_attention_with_prior.null_embedding"]
            mixed = torch.where(below.all(-1)[..., None], null, mixed)
            sign = torch.where(ids == gold[..., None], 1.0, -1.0)[ids > 0]
            loss = (options.get("margin", 0.2) - sign * scores[ids > 0]).clamp(min=0).mean()
        else:
            judged = (ids > 0).any(-1)
            right = (ids == gold[..., None]).long().argmax(-1)
            loss = cross_entropy(scores[judged], right[judged])
        known = self.norm(f"{name}.weighted_entity_layer_norm", mentions + mixed, 1e-5)
        infused = self.block(
            f"{name}.span_attention_layer", heads, narrow, known, mask, attention="attention.attention"
        )
        after = states + self.linear(f"{name}.kg_to_bert_projection", infused)
        return self.norm(f"{name}.output_layer_norm", after, 1e-5), scores, loss

    def read(self, ids, types, knowledge):
        bert, mask = "pretrained_bert.bert", ids > 0
        parts = zip(("word", "position", "token_type"), (ids, torch.arange(ids.shape[1])[None], types), strict=True)
        states = sum(self.state[f"{bert}.embeddings.{name}_embeddings.weight"][part] for name, part in parts)
        states = self.norm(f"{bert}.embeddings.LayerNorm", states, 1e-12)
        scores, losses = {}, {}
        order = sorted((place, kb) for kb, place in self.config["soldered_layers"].items())
        for number in range(LAYERS):
            states = self.block(f"{bert}.encoder.layer.{number}", HEADS, states, states, mask)
            for kb in (kb for place, kb in order if place == number):
                states, scores[kb], losses[kb] = self.layer(kb, states, knowledge[kb])
        return states, scores, losses

    def hidden_words(self, states, labels):
        """The loss of hidden words: 0 is no label."""
        head = "pretrained_bert.cls.predictions"
        wide = self.linear(f"{head}.transform.dense", states)
        wide = self.norm(f"{head}.transform.LayerNorm", wide * (1 + torch.erf(wide / math.sqrt(2))) / 2, 1e-12)
        logits = wide @ self.state[f"{head}.decoder.weight"].T + self.state[f"{head}.bias"]
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)


# Batches


def draw_texts():
    draw = torch.Generator().manual_seed(5)
    ids, types = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long), torch.zeros(0)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(2, len(VOCAB), (length,), generator=draw)
    types = (torch.arange(max(LENGTHS)) >= 3).long() * (ids > 0)
    return ids, types


def priors_of(kb, text, place, count):
    shares = torch.rand(count, generator=torch.Generator().manual_seed(100 * text + 10 * place + len(kb)))
    return shares / shares.sum()


def their_mentions(kb, mentions):
    """Padded: spans of -1, candidates of 0."""
    most = max(map(len, mentions.values()), default=1) + 1
    width = max((len(one[2]) for of_text in mentions.values() for one in of_text), default=1) + 1
    spans = torch.full((len(LENGTHS), most, 2), -1)
    ids, gold = torch.zeros(len(LENGTHS), most, width, dtype=torch.long), torch.zeros(len(LENGTHS), most).long()
    priors = torch.zeros(len(LENGTHS), most, width, dtype=torch.float64)
    for text, of_text in mentions.items():
        for place, (first, last, candidates, right) in enumerate(of_text):
            spans[text, place] = torch.tensor((first, last))
            ids[text, place, : len(candidates)] = torch.tensor(candidates, dtype=torch.long)
            priors[text, place, : len(candidates)] = priors_of(kb, text, place, len(candidates)).double()
            gold[text, place] = right
    return spans, ids, priors, gold


def our_mentions(kb, mentions, vectors):
    """End to end, by rows of the vectors."""
    listed = [(text, place, one) for text in sorted(mentions) for place, one in enumerate(mentions[text])]
    width = max((len(one[2]) for _, _, one in listed), default=1)
    entities = torch.full((len(listed), width), -1)
    priors, gold = torch.zeros(len(listed), width), torch.zeros(len(listed), width, dtype=torch.long)
    for row, (text, place, (_, _, candidates, right)) in enumerate(listed):
        rows = vectors.rows_of([NAMES[kb][id] for id in candidates])
        rows[[id == MASKED[kb] for id in candidates]] = -2
        assert len(candidates) == 0 or rows.min() > -1 or MASKED[kb] in candidates
        entities[row, : len(candidates)] = torch.from_numpy(rows)
        priors[row, : len(candidates)] = priors_of(kb, text, place, len(candidates))
        gold[row, : len(candidates)] = torch.tensor([id == right for id in candidates]).long()
    return {
        "text_of": torch.tensor([text for text, _, _ in listed], dtype=torch.long),
        "spans": torch.tensor([one[:2] for _, _, one in listed], dtype=torch.long).view(-1, 2),
        "entities": entities,
        "priors": priors,
        "gold": gold,
        "judged": torch.ones(len(listed), dtype=torch.long),
    }


def all_right(mentions):
    """With a candidate that is right everywhere."""
    return {
        text: [(*one[:3], one[3] if one[3] in one[2] else one[2][0]) for one in some] for text, some in mentions.items()
    }


# Files


def write_archive(folder, state, config, *, comma=True, legacy=True):
    """As AllenNLP lays it out, with the comma that they shipped."""
    (folder / "vocabulary").mkdir(parents=True)
    text = json.dumps({"dataset_reader": {"x": 'a,} // "b"'}, "model": config}, indent=4)
    if comma:
        text = f"// trained by hand\n{text[:-2]},\n    # the end\n}}\n"
    (folder / "config.json").write_text(text)
    torch.save(state, folder / "weights.th", _use_new_zipfile_serialization=not legacy)
    for kb in config["soldered_kgs"]:
        (folder / "vocabulary" / f"entity_{kb}.txt").write_text("\n".join(NAMES[kb][1:]) + "\n", "utf-8")
    (folder / "vocabulary" / "non_padded_namespaces.txt").write_text("*tags\n*labels\n")
    return folder


def pack_up(folder, to, mode="w:gz"):
    with tarfile.open(to, mode) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, str(path.relative_to(folder)))
    return to
