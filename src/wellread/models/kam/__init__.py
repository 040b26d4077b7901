"""KAM-BERT (Bai et al. 2022): knowledge as attention maps."""
