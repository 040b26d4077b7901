"""Inference of BERT-family encoders without torch: weights in numpy, ONNX graphs, onnxruntime sessions.

weights   read a checkpoint, merge a linker's adapters into it
ranges    measure what goes into each projection, for 8-bit integers
folding   fold scales and shifts of 8-bit inputs into weights and norms
graph     write the ONNX graph of an encoder, in floats or 8-bit integers
cache     keep graphs on disk, by digest
int8      int8 graphs, from the cache or built
session   run a graph over windows of any length
spans     score and pool the spans of packed windows
"""
