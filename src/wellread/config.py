"""Frozen dataclasses ⇄ TOML; a typo is an error that names the fix."""
