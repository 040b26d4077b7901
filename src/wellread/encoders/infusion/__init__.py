"""Infusion of knowledge into pretrained encoders."""
