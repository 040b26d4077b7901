"""`python -m wellread` is the command `wellread`."""

from wellread.cli import main

main()
