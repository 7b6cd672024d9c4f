"""Programs and jobs of several ranks as tasks: their results are exit codes."""

from dragon.native.process import ProcessTemplate
from dragon.workflows.batch import Batch

if __name__ == "__main__":
    with Batch() as batch:
        program = batch.process(ProcessTemplate("sh", ["-c", "exit 3"]))
        job = batch.job([(2, ProcessTemplate("true"))])
        print(program.get(), job.get())
