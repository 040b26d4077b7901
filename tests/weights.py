"""Weights of a model for the tests of training, and which of them have changed."""

import torch


def weights(model):
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def moved(model, before):
    return {name for name, weight in weights(model).items() if not torch.equal(weight, before[name])}
