"""Runs ranks on the nodes of policies, with connections for their output: `placed.py PROGRAM ARGUMENT... HOST,...`"""

import sys

from dragon.infrastructure.policy import Policy
from dragon.native.process import MSG_PIPE, Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup

if __name__ == "__main__":
    program, *arguments, hosts = sys.argv[1:]
    group = ProcessGroup(pmi="launcher")
    for host in hosts.split(","):
        policy = Policy(placement=Policy.Placement.HOST_NAME, host_name=host)
        group.add_process(1, ProcessTemplate(program, arguments, stdout=MSG_PIPE, policy=policy))
    group.init()
    group.start()
    puids = group.puids
    for puid in puids:
        connection = Process(None, ident=puid).stdout_conn
        try:
            while True:
                print(connection.recv(), end="")
        except EOFError:
            connection.close()
    group.join(60)
    print(sorted(group.exit_status) == [(puid, 0) for puid in sorted(puids)])
    group.close()
