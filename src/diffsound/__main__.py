"""`python -m diffsound`, for where the command is not on the path."""

from diffsound.cli.main import run

run()
