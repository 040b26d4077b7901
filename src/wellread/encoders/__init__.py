"""Pretrained encoders: loading, packing, quantisation and infusion."""
