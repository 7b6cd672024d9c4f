import random

from dragon.native.process_group import ProcessGroup
from dragon.native.process import ProcessTemplate
from dragon.native.queue import Queue


def data_generator(q_out, n_outputs):

    for _ in range(n_outputs):
        output_data = int(100 * random.random())
        print(f'generator feeding {output_data} to consumer', flush=True)
        q_out.put(output_data)


def data_consumer(q_in, n_inputs):

    for _ in range(n_inputs):
        input_data = q_in.get()
        result = input_data * 2
        print(f'consumer computed result {result} from input {input_data}', flush=True)


def run_group():

    q = Queue()
    pg = ProcessGroup()

    generator_template = ProcessTemplate(target=data_generator,
                                         args=(q, 5))
    consumer_template = ProcessTemplate(target=data_consumer,
                                        args=(q, 5))

    pg.add_process(nproc=1, template=generator_template)
    pg.add_process(nproc=1, template=consumer_template)

    pg.init()
    pg.start()

    pg.join()
    pg.close()


if __name__ == '__main__':

    run_group()
