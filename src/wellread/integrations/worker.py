"""A process that makes parts: `python -m wellread.integrations.worker FOLDER`.

It is told the numbers of shards on standard input, one a line, answers each with a line, and ends with its input.
"""

from __future__ import annotations

import signal
import sys

from wellread.errors import WellreadError
from wellread.integrations.annotation_folder import Worker


def main() -> None:
    """Work until there is no more."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it, by closing its input
    worker: Worker | None = None
    for line in sys.stdin:
        try:
            worker = worker or Worker(sys.argv[1])
            worker.make(int(line))
        except WellreadError as error:
            answers.write(f"{type(error).__name__} {' '.join(str(error).split())}\n")
        else:
            answers.write("done\n")
        answers.flush()


if __name__ == "__main__":
    main()
