// Shared by the bindings: waits without the GIL, argument parsing of frequently called methods, handles of
// shared objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <unistd.h>

#include "../core/channel.hpp"
#include "../core/sync.hpp"
#include "call_python.hpp"

namespace nb = nanobind;

namespace dragon::py {

// Python's own classes and functions, looked up once.
struct Python {
    PyObject *queue_full, *queue_empty, *destroyed, *locked, *pickle_dumps, *pickle_loads, *serializer,
        *on_inquiry;
};
extern Python python;

// Releases the GIL while it exists.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()) { here_ = true; }
    WithoutGil(const WithoutGil&) = delete;
    ~WithoutGil() {
        here_ = false;
        call_python([](void* s) { PyEval_RestoreThread(static_cast<PyThreadState*>(s)); }, state_);
    }
    static bool here() { return here_; }
    // Called when the interpreter has finished: there is no GIL any more.
    static void for_ever() { here_ = true; }

  private:
    inline static thread_local bool here_ = false;
    PyThreadState* state_;
};

// How the threads of this process wait without a deadline of the caller: see in_steps().
void wait_in_python(Attempt attempt, void* what);

// The index of the node of this process.
extern uint32_t node_index;

// Counts the threads that use an object through a handle, and records whether the handle is closed. Plain
// numbers suffice where the GIL excludes other threads.
class Users {
  public:
    void enter() { count_ += kOne; }
    // Both return whether the caller must release the object: true exactly once.
    bool leave() { return (count_ -= kOne) == kClosed && claim(); }
    bool close() { return (count_ |= kClosed) == kClosed && claim(); }
    bool claim() { return !claimed_.exchange(true); }
    bool closed() const { return count_ & kClosed; }

  private:
#ifdef Py_GIL_DISABLED
    using Count = std::atomic<uint32_t>;
#else
    using Count = uint32_t;
#endif
    static constexpr uint32_t kClosed = 1, kOne = 2;
    Count count_{0};
    std::atomic<bool> claimed_{false};
};

// A handle of a shared object in this process. It is closed by close(), by the garbage collector or by the
// run's end. Several threads may use it at once.
template <class T, Kind K>
struct Shared {
    Arena* const a;
    const Handle handle;
    const Role role;
    const Meta* const meta;

    // Gives a thread access to the object. The object is not released while a Use exists: if another thread
    // calls close(), the last user releases it. Throws if the object no longer exists.
    class Use {
      public:
        explicit Use(Shared& h) : h_(h) {
            h_.users_.enter();
            try {
                object_ = &h_.find();
            } catch (...) {
                leave();
                throw;
            }
        }
        Use(const Use&) = delete;
        ~Use() { leave(); }
        T& operator*() const { return *object_; }
        T* operator->() const { return object_; }
        Shared& handle() const { return h_; }
        Arena& arena() const { return *h_.a; }

      private:
        void leave() {
            if (h_.users_.leave()) h_.drop();
        }
        Shared& h_;
        T* object_;
    };
    Use use() { return Use(*this); }

    Shared(Handle h, Role r) : a(&arena()), handle(h), role(r), meta(&a->meta(h.offset)) {}
    Shared(const Shared&) = delete;
    ~Shared() {
        if (users_.claim()) drop();
    }
    void close() {
        if (users_.close()) let_go();
    }
    bool closed() const { return users_.closed(); }
    using Name = std::tuple<Offset, uint32_t, uint32_t>;
    // Attaches this process to an existing object.
    static void attach(Shared* self, Name name) {
        auto [offset, generation, role] = name;
        if (role >> kNodeShift != node_index) throw ObjectDestroyed("the object is on another node");
        arena().attach({offset, generation}, K, role_of(role));
        new (self) Shared({offset, generation}, role_of(role));
    }
    Name name() const {
        return {handle.offset, handle.generation, static_cast<uint32_t>(role) | node_index << kNodeShift};
    }
    void send() { use().arena().send(handle, role); }

  private:
    T& find() const {
        if (closed()) throw nb::value_error("this handle is closed");
        if (!is_current(a)) throw ObjectDestroyed("the run that this object belonged to has ended");
        // A forked child's copy of a handle does not keep the object alive.
        if (meta->generation() != handle.generation) throw ObjectDestroyed("the object is gone");
        return *a->at<T>(handle.offset);
    }
    void let_go() {
        if (is_current(a)) a->release_when_possible(handle, role);
    }
    void drop() {
        try {
            let_go();
        } catch (const std::exception& e) {
            nb::error_scope scope;
            PyErr_SetString(PyExc_RuntimeError, e.what());
            PyErr_WriteUnraisable(nullptr);
        }
    }

    Users users_;
};

using ChannelHandle = Shared<Channel, Kind::Channel>;
using LockHandle = Shared<Lock, Kind::Lock>;
using SemaphoreHandle = Shared<Semaphore, Kind::Semaphore>;
using EventHandle = Shared<Event, Kind::Event>;
using ConditionHandle = Shared<Condition, Kind::Condition>;
using WordsHandle = Shared<Words, Kind::Words>;

inline std::atomic<uint64_t>& word(Words& words, uint32_t i) {
    if (i >= words.count()) throw nb::index_error("word index out of range");
    return words.at(i);
}

// The id of the calling thread, or of the guest's thread for which the agent acts.
extern thread_local uint64_t guest_thread;
inline uint64_t thread_id() { return guest_thread ? guest_thread : PyThread_get_thread_ident(); }

[[noreturn]] inline void raise(PyObject* type, const char* text) {
    PyErr_SetString(type, text);
    throw nb::python_error();
}

// Raises an error that was sent, by the name of its class and its text.
[[noreturn]] inline void raise_named(const std::string& kind, const std::string& text) {
    nb::object raised = nb::module_::import_("dragon.runtime.agent_client")
                            .attr("error_named")(nb::str(kind.c_str()), nb::str(text.c_str()));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw nb::python_error();
}

// The memory of an object, as long as this exists; none for None.
class Memory {
  public:
    explicit Memory(nb::handle object) {
        if (object.is_none()) return;
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) < 0) throw nb::python_error();
        held_ = true;
    }
    Memory(const Memory&) = delete;
    Memory(Memory&& other) noexcept : view_(other.view_), held_(std::exchange(other.held_, false)) {}
    ~Memory() {
        if (held_) PyBuffer_Release(&view_);
    }
    std::string_view text() const {
        return held_ ? std::string_view(static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len))
                     : std::string_view();
    }

  private:
    Py_buffer view_{};
    bool held_ = false;
};

// Calls the callback that was set with on_inquiry().
void report_myself();

// How long an attempt without a timeout still waits for another process that has the object locked, so that
// it does not fail only because that process lost its processor. The agent waits less, as it repeats its
// attempts.
Nanoseconds grace(Arena& a);

// Repeats an attempt that found the object locked. The agent, which takes no lock for an empty or full queue,
// gets a StillLocked.
template <class F>
Status try_again(Arena& a, F f) {
    Status status;
    Nanoseconds end = now() + grace(a);
    do {
        {
            WithoutGil without;
            usleep(500);
        }
        if (in_python(PyErr_CheckSignals) != 0) throw nb::python_error();
        status = f(Nanoseconds{0});
    } while (status == Status::Busy && now() < end);
    if (status == Status::Busy && a.keeps()) throw StillLocked();
    return status == Status::Busy ? Status::Timeout : status;
}

// Tries `f(0)` first, then waits in `f(deadline)` without the GIL, and runs signal handlers when signals
// arrive. The wait ends early if the run ends or another thread closes the handle: both are checked once a
// second.
template <class Use, class F>
Status wait(const Use& use, Purpose purpose, Nanoseconds deadline, F f) {
    Status status = f(Nanoseconds{0});
    Arena& a = use.arena();
    if (deadline == 0) return status == Status::Busy ? try_again(a, f) : status;
    if (status != Status::Timeout && status != Status::Busy) return status;
    const auto& h = use.handle();
    Nanoseconds start = now();
    struct Waiting {
        Arena& a;
        int place;
        ~Waiting() { a.end_wait(place); }
    } waiting{a, purpose == Purpose::None ? -1 : a.begin_wait(h.handle.offset, purpose, thread_id(), start)};
    for (;; start = now()) {
        Nanoseconds until = std::min(deadline, start + 1'000'000'000);
        {
            WithoutGil without;
            status = f(until);
            if (status == Status::Busy) status = Status::Timeout;
            if (status == Status::Timeout && now() - start > 200'000'000 && !a.kept())
                throw ObjectDestroyed("the run has ended: its agent is gone");
        }
        if (status == Status::Timeout && a.asked()) report_myself();
        if (status != Status::Interrupted && (status != Status::Timeout || until == deadline)) return status;
        // As in the standard library, get() raises EOFError.
        if (h.closed())
            raise(purpose == Purpose::Get ? PyExc_EOFError : PyExc_ValueError,
                  "another thread closed this handle");
        // Also after each second: a signal that arrived between two sleeps, or in another thread, interrupts
        // no sleep.
        if (in_python(PyErr_CheckSignals) != 0) throw nb::python_error();
    }
}

// The deadline of a `timeout` in seconds; None: no deadline.
inline Nanoseconds deadline_from(PyObject* timeout) {
    if (!timeout || timeout == Py_None) return kForever;
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "timeout must be a number of seconds, or None, not %R", timeout);
        throw nb::python_error();
    }
    return seconds <= 0 ? 0 : deadline_after(seconds);
}

inline bool truth(PyObject* object) {
    int result = in_python([&] { return PyObject_IsTrue(object); });
    if (result < 0) throw nb::python_error();
    return result != 0;
}

// Parses the arguments of a METH_FASTCALL | METH_KEYWORDS method: sets `out` in the order of `names`, missing
// ones to null.
template <size_t N>
void parse(PyObject* const* args, Py_ssize_t count, PyObject* keywords, const char* const (&names)[N],
           PyObject* (&out)[N]) {
    if (count > static_cast<Py_ssize_t>(N)) throw nb::type_error("too many arguments");
    for (size_t i = 0; i < N; ++i) out[i] = static_cast<Py_ssize_t>(i) < count ? args[i] : nullptr;
    if (!keywords) return;
    for (Py_ssize_t k = 0, n = PyTuple_Size(keywords); k < n; ++k) {
        PyObject* name = PyTuple_GetItem(keywords, k);
        size_t i = 0;
        while (i < N && PyUnicode_CompareWithASCIIString(name, names[i]) != 0) ++i;
        if (i == N || out[i]) {
            PyErr_Format(PyExc_TypeError,
                         i == N ? "unexpected keyword argument '%U'" : "argument '%U' given twice", name);
            throw nb::python_error();
        }
        out[i] = args[count + k];
    }
}

// The deadline of `f(block=True, timeout=None)`.
inline Nanoseconds deadline_of(PyObject* block, PyObject* timeout) {
    return block && !truth(block) ? 0 : deadline_from(timeout);
}

// Runs `f` in a method that nanobind does not wrap, and translates C++ exceptions to Python exceptions.
template <class F>
PyObject* guarded(F f) noexcept {
    try {
        return f();
    } catch (nb::python_error& e) {
        e.restore();
    } catch (const OutOfMemory& e) {
        PyErr_SetString(PyExc_MemoryError, e.what());
    } catch (const ObjectDestroyed& e) {
        PyErr_SetString(python.destroyed, e.what());
    } catch (const StillLocked& e) {
        PyErr_SetString(python.locked, e.what());
    } catch (const nb::builtin_exception& e) {
        PyErr_SetString(e.type() == nb::exception_type::type_error ? PyExc_TypeError : PyExc_ValueError,
                        e.what());
    } catch (const std::exception& e) {
        PyErr_SetString(PyExc_RuntimeError, e.what());
    }
    return nullptr;
}

template <class T>
T& self_of(PyObject* self) {
    return *nb::inst_ptr<T>(nb::handle(self));
}

// Words for the object of a handle, such as "queue made at train.py:12".
template <class H>
std::string described(const char* what, const H& h) {
    std::string place = h.a->place_of(h.handle.offset);
    return place.empty() ? what : what + (" made at " + place);
}

// The members that every handle has; `Class(name)` attaches to an existing object.
template <class H>
void bind_handle(nb::class_<H>& c) {
    c.def("__init__", &H::attach, nb::arg("name"))
        .def("_name", &H::name)
        .def("_send", &H::send)
        .def("_close", &H::close)
        .def(
            "_made_at", [](H& h, std::string_view text) { h.use()->place = h.a->intern(text); },
            nb::arg("place"))
        .def("_place", [](H& h) { return h.use().arena().place_of(h.handle.offset); })
        .def("_watch", [](H& h, bool on) { h.use()->watch(on ? 1u : UINT32_MAX); })
        .def_prop_ro("_closed", &H::closed);
}

void bind_channel(nb::module_& m);
void bind_sync(nb::module_& m);
void bind_inspection(nb::module_& m);
void bind_pinned(nb::module_& m);
void bind_process_end(nb::module_& m);
void bind_wire(nb::module_& m);
void bind_remote(nb::module_& m);
void bind_store(nb::module_& m);

}  // namespace dragon::py
