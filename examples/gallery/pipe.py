"""A pipe between two processes; reading ends with EOFError when the other end is closed."""

import multiprocessing as mp

import dragon


def send(connection):
    for number in range(3):
        connection.send({"number": number})
    connection.close()


if __name__ == "__main__":
    mp.set_start_method("dragon")
    reader, writer = mp.Pipe(duplex=False)
    process = mp.Process(target=send, args=(writer,))
    process.start()
    writer.close()
    try:
        while True:
            print(reader.recv())
    except EOFError:
        print("closed")
    process.join()
