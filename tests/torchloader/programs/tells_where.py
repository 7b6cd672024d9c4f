"""A job with a Session whose samples have the name of the node that loaded them. It trains until they came from `NODES`
nodes and the output folder has a file `go`.

tells_where.py NODES
"""

import sys
import time
from pathlib import Path

from dragon.native.machine import current

LENGTH = 100_000


class Slow:
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(0.05)
        return index, current().hostname


def main():
    from torchloader.training.session import Session  # with PyTorch, for which loading workers have no use

    nodes, seen, hosts = int(sys.argv[1]), [], set()
    with Session.join() as session:
        loader = session.loader(Slow(), 1, collate_fn=list)
        for [(number, host)] in session.steps(loader):
            seen.append(number)
            hosts.add(host)
            if len(hosts) >= nodes and Path(f"{session.folder}/go").exists():
                break
        told = [seen == sorted(set(seen)) == list(range(len(seen))), *sorted(hosts)]
        Path(f"{session.folder}/{session.application}.txt").write_text(" ".join(map(str, told)))


if __name__ == "__main__":
    main()
