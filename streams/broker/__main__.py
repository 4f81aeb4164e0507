"""Run the embedded broker as its own process: `python -m streams.broker`.

Prints one JSON line with its address when it is ready; ends on SIGTERM, SIGINT or with its
supervisor. Its data is lost at the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys

from streams.broker.embedded import EmbeddedBrokerFailed, embedded_broker
from topics.edge.supervision import prepare_end
from topics.topic_table import PREFIX, TABLE


def main(argv: list[str] | None = None) -> int:
    """Run until a signal. Exit code 0, or 1 if the broker cannot start."""
    parser = argparse.ArgumentParser(prog="python -m streams.broker", description=__doc__)
    parser.add_argument("--prefix", default=PREFIX, help=f"of topic names (default {PREFIX})")
    arguments = parser.parse_args(argv)
    wait = prepare_end()
    try:
        with embedded_broker({t.wire_name(arguments.prefix): t.partitions for t in TABLE}) as at:
            print(json.dumps({"ready": True, "bootstrap": at}), flush=True)
            wait()
    except EmbeddedBrokerFailed as error:
        print(f"embedded broker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    gc.freeze()  # Collections need not visit what the imports made.
    sys.exit(main())
