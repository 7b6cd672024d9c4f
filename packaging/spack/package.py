"""A recipe for Spack; in a repository of yours it is packages/py_dragon_runtime/package.py.

It takes the sources from a checkout, as there is no archive to download:

    spack dev-build --source-path PATH_OF_THE_CHECKOUT py-dragon-runtime@0.1.0
"""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyDragonRuntime(PythonPackage):
    """A distributed runtime for processes, memory and data: multiprocessing over one node or many."""

    license("MIT")

    version("0.1.0")

    variant("torch", default=False, description="What torchloader trains with")

    depends_on("cxx", type="build")
    depends_on("cmake@3.18:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@0.11:", type="build")
    depends_on("py-nanobind@2.4:", type="build")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-cloudpickle@3:", type="run")
    depends_on("py-cryptography@47:", type="run")
    depends_on("py-msgspec@0.18:", type="run")
    depends_on("py-psutil@5.9:", type="run")
    depends_on("py-pyyaml@6:", type="run")
    depends_on("py-uvloop@0.19:", type="run")

    depends_on("py-torch@2.2:", type="run", when="+torch")
    depends_on("py-numpy@1.24:", type="run", when="+torch")
    depends_on("py-pillow@10:", type="run", when="+torch")
    depends_on("py-threadpoolctl@3:", type="run", when="+torch")

    conflicts("platform=darwin", msg="dragon runs on Linux")
    conflicts("platform=windows", msg="dragon runs on Linux")

    import_modules = ("dragon", "torchloader")
