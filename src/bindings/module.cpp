#include <dlfcn.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <cstring>
#include <mutex>

#include "../core/process.hpp"
#include "../core/process_handle.hpp"
#include "../core/system_calls.hpp"
#include "file_text.hpp"
#include "fork_server.hpp"
#include "large_bytes.hpp"
#include "messages.hpp"

namespace dragon::py {

Python python{};
uint32_t node_index = 0;
thread_local uint64_t guest_thread = 0;

namespace {

PyObject* lookup(const char* module, const char* name) {
    return nb::object(nb::module_::import_(module).attr(name)).release().ptr();
}

// Python calls this hook before each change of a limit. The addresses that this process has mapped would
// count against a new limit of the address space.
int on_audit(const char* event, PyObject* arguments, void*) {
    bool own = strcmp(event, "resource.setrlimit") == 0;
    if (!own && strcmp(event, "resource.prlimit") != 0) return 0;
    long which = PyLong_AsLong(PyTuple_GetItem(arguments, own ? 0 : 1));
    if (PyErr_Occurred()) PyErr_Clear();  // the call itself raises the error
    if (which == RLIMIT_AS && has_arena()) arena().shrink_mapping();
    return 0;
}

void watch_limits() {
    static std::once_flag once;
    std::call_once(once, [] {
        // Present in every CPython from 3.8 on, but not in the limited API, so it is looked up by name.
        using AddAuditHook = int (*)(int (*)(const char*, PyObject*, void*), void*);
        if (void* add = dlsym(RTLD_DEFAULT, "PySys_AddAuditHook"))
            reinterpret_cast<AddAuditHook>(add)(on_audit, nullptr);
    });
}

void open_arena(int fd) {
    set_arena(Arena::open(fd));
    watch_limits();
}

int create_arena(uint64_t limit) {
    auto* a = new Arena(limit);
    set_arena(a);
    watch_limits();
    return a->fd();
}

std::vector<std::tuple<int, uint64_t>> processes() {
    std::vector<SlotInfo> slots(kSlots);
    slots.resize(arena().processes(slots.data(), slots.size()));
    std::vector<std::tuple<int, uint64_t>> result;
    for (auto& s : slots) result.emplace_back(s.pid, s.blocks);
    return result;
}

int start_executable(const FileText& executable, const std::vector<FileText>& arguments,
                     const std::vector<FileText>& environment, std::vector<int> descriptors,
                     const FileText& folder, std::vector<int> cpus, Limits limits,
                     const std::vector<uint64_t>& signals, int death_signal, bool reaper, bool detached) {
    std::optional<Signals> sets;
    if (signals.size() == 3) sets = Signals{signals[0], signals[1], signals[2]};
    return launch({executable,
                   {arguments.begin(), arguments.end()},
                   {environment.begin(), environment.end()},
                   folder,
                   std::move(descriptors),
                   std::move(cpus),
                   std::move(limits),
                   sets,
                   death_signal,
                   reaper,
                   detached});
}

sigset_t signal_set(const std::vector<int>& numbers) {
    sigset_t set;
    sigemptyset(&set);
    for (int number : numbers) sigaddset(&set, number);
    return set;
}

int signal_descriptor(const std::vector<int>& read, const std::vector<int>& ignored) {
    sigset_t set = signal_set(read);
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0) throw SystemFailure(errno, "signalfd");
    for (int number : ignored) sigaddset(&set, number);
    sigprocmask(SIG_SETMASK, &set, nullptr);
    return fd;
}

// fork() without Python's work after a fork for other threads and for hooks: the caller has none.
int plain_fork() {
    pid_t pid = fork();
    if (pid < 0) throw SystemFailure(errno, "no new process (ulimit -u)");
    return pid;
}

nb::dict usage() {
    Usage u = arena().usage();
    nb::dict d;
    d["limit"] = u.limit;
    d["committed"] = u.committed;
    d["in_use"] = u.in_use;
    d["blocks"] = u.blocks;
    return d;
}

}  // namespace
}  // namespace dragon::py

NB_MODULE(_core, m) {
    using namespace dragon;
    using namespace dragon::py;
    m.doc() =
        "The shared memory of a node: the arena, channels and synchronisation objects. "
        "Mechanism only.";
    nb::set_leak_warnings(false);  // daemon threads may have handles until the process ends

    PyObject* destroyed = PyErr_NewExceptionWithDoc(
        "dragon._core.DestroyedError",
        "The object does not exist any more: it was destroyed, or its run has ended.", PyExc_ValueError,
        nullptr);
    m.attr("DestroyedError") = nb::handle(destroyed);
    PyObject* locked =
        PyErr_NewExceptionWithDoc("dragon._core.LockedError",
                                  "A needed lock is held by a process that does not continue, because it was "
                                  "stopped or gets no CPU time.",
                                  PyExc_RuntimeError, nullptr);
    m.attr("LockedError") = nb::handle(locked);
    wait_in_steps = wait_in_python;
    python = {
        lookup("queue", "Full"),    lookup("queue", "Empty"),   destroyed, locked, lookup("_pickle", "dumps"),
        lookup("_pickle", "loads"), lookup("_pickle", "dumps"), nullptr};

    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const OutOfMemory& e) {
            PyErr_SetString(PyExc_MemoryError, e.what());
        } catch (const ObjectDestroyed& e) {
            PyErr_SetString(python.destroyed, e.what());
        } catch (const StillLocked& e) {
            PyErr_SetString(python.locked, e.what());
        } catch (const NoSuchRole& e) {
            PyErr_SetString(PyExc_ValueError, e.what());
        } catch (const SystemFailure& e) {
            errno = e.error;
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, e.what());
        }
    });

    m.def("create_arena", &create_arena, nb::arg("limit"),
          "Make an arena for this process and return its descriptor.");
    m.def("open_arena", &open_arena, nb::arg("fd"), "Map the arena of a descriptor.");
    m.def(
        "close_arena", [] { set_arena(nullptr); },
        "Leave the run; handles of its objects cannot be used any more.");
    m.def("has_arena", &has_arena);
    m.def("arena_fd", [] { return arena().fd(); });
    m.def("arena_id", [] { return arena().id(); });
    m.def("usage", &usage,
          "Return the bytes of the limit, of memory committed by the kernel, and of blocks "
          "in use; and the number of those blocks.");
    m.def(
        "trim", [] { return arena().trim(); },
        "Return the pages of free blocks to the kernel. Returns the number of bytes.");
    m.def(
        "set_node", [](uint32_t index) { node_index = index; }, "Set the index of the node of this process.");
    m.def(
        "act_as",
        [](OwnerId guest, uint64_t thread) {
            guest_thread = thread;
            return arena().act_as(guest);
        },
        "Act as a guest, a thread of a process of another node, or as another owner of locks of this "
        "process. Returns "
        "the id as which it acted before.");
    m.def("thread_id", &thread_id, "Return the number by which locks know this thread.");
    m.def("myself", [] { return arena().self(); });
    m.def("next_number", [] { return arena().next_number(); });
    m.def(
        "set_serializer", [](nb::object f) { python.serializer = f.release().ptr(); }, nb::arg("serializer"));
    m.def("set_bell_folder", [](const std::string& path) { set_bell_folder(path.c_str()); });
    m.def(
        "reserve_slot", [] { return arena().reserve_slot(); }, "Reserve a slot for a process to be forked.");
    m.def("fill_slot", [](OwnerId owner, int pid) { arena().fill_slot(owner, pid); });
    m.def(
        "take_slot", [](OwnerId owner) { arena().take_slot(owner); },
        "Make that slot this process's, unless it is that of an ancestor.");
    m.def("exists", [](Offset offset, uint32_t generation) { return arena().exists({offset, generation}); });
    m.def("reap", [](int pid) { return arena().reap(pid); }, "Free what a dead process left behind.");
    m.def(
        "reap_dead", [] { return arena().reap_dead(); },
        "Free what all dead processes left behind, and return their number.");
    m.def("processes", &processes, "Return (pid, number of blocks it owns) of every process.");
    m.def(
        "set_keeper", [] { arena().set_keeper(arena().self()); },
        "Make this process the keeper of the run: waits end when it ends.");
    m.def("signal_descriptor", &signal_descriptor, nb::arg("read"), nb::arg("ignored"),
          "Block these signals, and return a descriptor from which the first ones are read.");
    m.def("plain_fork", &plain_fork);
    m.def("anonymous_memory", &anonymous_memory, "Return a descriptor of memory without a name.");
    m.def("open_process", &open_process,
          "Return a descriptor of a process, readable when it ends. Raises "
          "ProcessLookupError if there is none.");
    m.def("signal_process", &signal_process,
          "Send a signal to the process of a descriptor. Raises ProcessLookupError if it has ended.");
    m.def("current_umask", &current_umask, "Return this process's umask, without changing it.");
    m.def("current_signals", [] {
        auto mine = current_signals();
        return mine ? std::vector<uint64_t>{mine->ignored, mine->blocked, mine->defaults}
                    : std::vector<uint64_t>{};
    });
    m.def("current_limits", &current_limits,
          "Return the soft and hard resource limits of this process by number, then its niceness.");
    m.def("prctl", [](int option, unsigned long value) {
        if (prctl(option, value, 0, 0, 0) != 0) throw SystemFailure(errno, "prctl");
    });
    m.def("start_executable", &start_executable, nb::arg("executable"), nb::arg("arguments"),
          nb::arg("environment"), nb::arg("descriptors"), nb::arg("folder") = "",
          nb::arg("cpus") = std::vector<int>{}, nb::arg("limits") = Limits{},
          nb::arg("signals") = std::vector<uint64_t>{}, nb::arg("death_signal") = 0,
          nb::arg("reaper") = false, nb::arg("detached") = false,
          "Start an executable and return its process id. Raises OSError.");
    bind_channel(m);
    bind_sync(m);
    bind_inspection(m);
    bind_pinned(m);
    bind_large_bytes(m);
    bind_fork_server(m);
    bind_process_end(m);
    bind_wire(m);
    bind_remote(m);
    bind_store(m);
}
