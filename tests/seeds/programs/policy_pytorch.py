from dragon.infrastructure.policy import Policy
from dragon.native.process_group import ProcessGroup
from dragon.native.process import ProcessTemplate
from dragon.native.queue import Queue

import torch
import math


def data_generate(q_out):

    torch.set_default_device("cpu")

    dtype = torch.float

    # Create Tensors to hold input and outputs.
    # By default, requires_grad=False, which indicates that we do not need to
    # compute gradients with respect to these Tensors during the backward pass.
    x = torch.linspace(-math.pi, math.pi, 2000, dtype=dtype)
    y = torch.sin(x)

    # Create random Tensors for weights. For a third order polynomial, we need
    # 4 weights: y = a + b x + c x^2 + d x^3
    # Setting requires_grad=True indicates that we want to compute gradients with
    # respect to these Tensors during the backward pass.
    a = torch.randn((), dtype=dtype, requires_grad=True)
    b = torch.randn((), dtype=dtype, requires_grad=True)
    c = torch.randn((), dtype=dtype, requires_grad=True)
    d = torch.randn((), dtype=dtype, requires_grad=True)

    q_out.put((x, y, a, b, c, d))


def pytorch_train(q_in):

    torch.set_default_device("cuda")

    x, y, a, b, c, d = q_in.get()

    x.to('cuda')
    y.to('cuda')
    a.to('cuda')
    b.to('cuda')
    c.to('cuda')
    d.to('cuda')

    learning_rate = 1e-6
    for t in range(2000):
        # Forward pass: compute predicted y using operations on Tensors.
        y_pred = a + b * x + c * x ** 2 + d * x ** 3

        # Compute and print loss using operations on Tensors.
        loss = (y_pred - y).pow(2).sum()
        if t % 100 == 99:
            print(t, loss.item())

        # Use autograd to compute the backward pass.
        loss.backward()

        # Manually update weights using gradient descent.
        with torch.no_grad():
            a -= learning_rate * a.grad
            b -= learning_rate * b.grad
            c -= learning_rate * c.grad
            d -= learning_rate * d.grad

            # Manually zero the gradients after updating weights
            a.grad = None
            b.grad = None
            c.grad = None
            d.grad = None

    print(f'Result: y = {a.item()} + {b.item()} x + {c.item()} x^2 + {d.item()} x^3')


def run_group():

    q = Queue()
    pg = ProcessGroup()

    # Since we don't care where the data gets generated, we let
    # Dragon determine the placement by leaving the placement kwarg blank
    generator_template = ProcessTemplate(target=data_generate,
                                         args=(q,))

    # node 'pinoak0033' is the hostname for a node with NVIDIA A100 GPUs.
    # We tell Dragon to use it for this process via the policy kwarg.
    train_template = ProcessTemplate(target=pytorch_train,
                                     args=(q,),
                                     policy=Policy(placement=Policy.Placement.HOST_NAME,
                                                   host_name='pinoak0033'))

    pg.add_process(nproc=1, template=generator_template)
    pg.add_process(nproc=1, template=train_template)

    pg.init()
    pg.start()

    pg.join()
    pg.close()


if __name__ == '__main__':

    run_group()
