"""Write to a program's input and read its output, line by line."""

from dragon.native.process import Popen, Process

if __name__ == "__main__":
    process = Process("sort", ["-r"], stdin=Popen.PIPE, stdout=Popen.PIPE)
    process.start()
    for word in ("pear", "apple", "quince"):
        process.stdin_conn.send(word + "\n")
    process.stdin_conn.close()
    try:
        while True:
            print("sorted:", process.stdout_conn.recv(), end="")
    except EOFError:
        print("exit code", process.join())
