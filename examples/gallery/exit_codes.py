"""How a process ended: its exit code, 1 after an exception, or minus the signal's number."""

import sys
import time

from dragon.native import Process
from dragon.native.process import Popen

if __name__ == "__main__":
    for name, target, args in (
        ("a function that returns", print, ("done",)),
        ("sys.exit(3)", sys.exit, (3,)),
        ("an exception", int, ("no number",)),
        ("a program", "sh", ["-c", "exit 4"]),
    ):
        process = Process(target, args, stdout=Popen.DEVNULL, stderr=Popen.DEVNULL)
        process.start()
        print(name, process.join())
    process = Process(time.sleep, (60,))
    process.start()
    process.terminate()
    print("terminated", process.join())
