"""ELQ (Li et al. 2020): mention detection and entity linking in one pass."""
