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
    inference         the mention linker in numpy, on any encoder's states
    linker_vectors    candidate vectors in numpy: from an 8-bit table, or projected from the KB's
    linker_entities   entities that a backend can link to, following changes of the KB
    pos_tags          part-of-speech tags that restrict candidates
    folder            saved models: files, settings, requirements
    loading           loads a linker for onnxruntime
    torch_linker      the same on torch, for layers with others below them
    saving            shrinks a model to a linker
    quantization      8-bit entity vectors and 4-bit weight changes of a small linker
    entity_kinds      kinds of a KB's entities as numbers
    archive           reader of the checkpoints of the authors
    conversion        conversion of them
"""
