"""Worker process of an annotation: `python -m wellread.integrations.worker FOLDER`.

Reads shard numbers from standard input, one per line, answers each with a line, and ends with its input.
"""

from __future__ import annotations

import signal
import sys

from wellread.errors import WellreadError
from wellread.integrations.annotation_folder import Worker


def main() -> None:
    """Annotate shards until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not mix with answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent closes the input
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
