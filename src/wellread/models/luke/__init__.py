"""LUKE (Yamada et al. 2020): entities as extra tokens with entity-aware attention.

In reading order: `config`, `model` (entity embeddings, queries, entity head), `vocabulary`, `mention_windows` (text and
mentions to tokens), `inputs` (knowledge provider), `heads`, `linker`, `linked_text`, `pretraining_task`, `pretraining`,
`recipe` (LUKE in a task), `checkpoint` (folders of transformers and of the authors), `conversion`.
"""
