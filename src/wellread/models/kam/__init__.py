"""KAM-BERT (Bai et al. 2022): knowledge as attention maps.

In the order of the paper, "Enhancing Self-Attention with Knowledge-Assisted Attention Maps":

- `maps`: relevance between the words of a text (eq. 5-8): entities, phrases, correlation, graph;
- `auxiliary_terms`: words that are not in a text, but correlate with it (section 3.3);
- `inputs`: maps and terms as arrays over tokens, and the provider that makes them for a dataset;
- `model`: their fusion into the attention of a pretrained encoder (eq. 1-4).
"""
