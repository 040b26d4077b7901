"""KnowBERT (Peters et al. 2019): a knowledge layer with its own entity linker.

In the order of the paper:

    config            sizes of a layer, options for finding candidates
    model             the layer: knowledge attention and recontextualization (KAR)
    mention_linker    pooled mentions, scored and mixed candidates
    entity_tables     entity vectors, projected and normed
    inputs            KnowBertProvider: mentions and candidates of a batch
    mention_cache     mentions of a dataset, found once
    pretraining       recipe and stages of the training
    pretraining_task  its data, and the linking task
    recipe            KBs, vectors and layers that a recipe names

Beyond the paper:

    linker            linker backend
    linker_entities   entities that a backend can link to, following changes of the KB
    pos_tags          part-of-speech tags that restrict candidates
    folder            saved models: requirements, loading and shrinking to a linker
    quantization      8-bit entity vectors and 4-bit weight changes of a small linker
    archive           reader of the checkpoints of the authors
    conversion        conversion of them
"""
