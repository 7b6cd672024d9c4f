// The work for the run after the interpreter of this process has finished. All exit handlers, finalizers and
// __del__ methods run before it, and may use the run's objects.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/run_end.hpp"
#include "common.hpp"

namespace dragon::py {

namespace {

pid_t member = 0;             // the process that releases its attachments at its end
const RunEnd* own = nullptr;  // the run that ends with the process `owner`
pid_t owner = 0;
int tracker = -1;  // descriptor of multiprocessing's tracker of shared memory, which ends when all close it

// Releases this process's attachments if it has no other thread, because others may be using an object that
// would be freed. Otherwise, and while this process owns memory, the process that reaps it releases
// everything.
void leave_arena() {
    struct stat tasks;
    bool alone = stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
    if (has_arena() && alone && arena().leave()) set_arena(nullptr);
}

void at_end() {
    WithoutGil::for_ever();
    if (own && owner == getpid()) {
        if (tracker >= 0) close(tracker);
        end_run(*own);
    } else if (member == getpid()) {
        leave_arena();
    }
}

}  // namespace

void bind_process_end(nb::module_& m) {
    if (Py_AtExit(at_end) != 0)
        throw std::runtime_error("no more functions can be called at the interpreter's end");
    nb::class_<RunEnd>(m, "RunEnd", "Ends a run, in the process that owns it.")
        .def(
            "__init__",
            [](RunEnd* self, int agent, std::string address, nb::bytes request, std::string busy,
               std::vector<std::string> folders, double within) {
                new (self) RunEnd{agent,           std::move(address), {request.c_str(), request.size()},
                                  std::move(busy), std::move(folders), within};
            },
            nb::arg("agent"), nb::arg("address"), nb::arg("request"), nb::arg("busy"), nb::arg("folders"),
            nb::arg("within"))
        .def(
            "now",
            [](const RunEnd& run) {
                WithoutGil without;
                end_run(run);
            },
            "End the run, and return when its agent has ended.")
        .def(
            "at_exit",
            [](const RunEnd& run) {
                own = new RunEnd(run);  // never freed: one per run of this process, needed until the very end
                owner = getpid();
            },
            "End the run when the interpreter of this process has finished.");
    m.def("forget_run_end", [] { own = nullptr; }, "Note that the run of this process was ended.");
    m.def(
        "set_tracker", [](int descriptor) { tracker = descriptor; }, nb::arg("descriptor"),
        "Set the descriptor of the tracker of shared memory, which is closed before this "
        "process ends its run; -1 for none.");
    m.def("leave_arena", &leave_arena, "Release all objects of this process, which is about to end.");
    m.def(
        "leave_arena_at_exit", [] { member = getpid(); },
        "Release all objects when the interpreter of this process has finished.");
}

}  // namespace dragon::py
