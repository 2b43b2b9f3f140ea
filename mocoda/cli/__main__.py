"""`python -m mocoda.cli` is the command `mocoda`."""

from mocoda.cli import main

main()
