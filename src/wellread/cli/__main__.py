"""`python -m wellread.cli` is `wellread`."""

from wellread.cli import main

main()
