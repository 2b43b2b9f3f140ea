"""`python -m mocoda.cli`."""

from mocoda.cli.verbs import main

main()
