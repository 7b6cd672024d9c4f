"""One process on each node, placed by the node's name."""

from dragon.infrastructure.policy import Policy
from dragon.native.machine import Node, System, current
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue


def tell(queue, expected):
    queue.put(current().hostname == expected)


if __name__ == "__main__":
    queue, group = Queue(), ProcessGroup()
    hosts = [Node(node).hostname for node in System().nodes]
    for host in hosts:
        policy = Policy(placement=Policy.Placement.HOST_NAME, host_name=host)
        group.add_process(nproc=1, template=ProcessTemplate(tell, args=(queue, host), policy=policy))
    group.init()
    group.start()
    print("all on their nodes:", all(queue.get() for _ in hosts))
    group.join()
    group.close()
