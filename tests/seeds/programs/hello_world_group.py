import socket
from dragon.native.process_group import ProcessGroup
from dragon.native.process import ProcessTemplate


def hello_world():
    print(f'hello from process {socket.gethostname()}!')


def run_hello_world_group():

    pg = ProcessGroup()
    hello_world_template = ProcessTemplate(target=hello_world)
    pg.add_process(nproc=4, template=hello_world_template)

    pg.init()
    pg.start()

    pg.join()
    pg.close()


if __name__ == '__main__':

    run_hello_world_group()
