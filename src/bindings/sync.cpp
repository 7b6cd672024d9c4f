#include <nanobind/stl/optional.h>

#include "common.hpp"

namespace dragon::py {

namespace {

// Warns that the holder of a lock died, which may be an error.
void warn_recovered(const std::string& what) {
    if (in_python([&] {
            return PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                                    "the %s was held by a process that died; it is recovered", what.c_str());
        }) < 0)
        throw nb::python_error();
}

template <class H>
bool acquired(Status status, const H& h, const char* what) {
    switch (status) {
        case Status::Recovered:
            warn_recovered(described(what, h));
            return true;
        case Status::Destroyed:
            raise(python.destroyed, ("the " + described(what, h) + " was destroyed").c_str());
        default:
            return status == Status::Ok;
    }
}

PyObject* result(bool value) { return nb::bool_(value).release().ptr(); }

// ---- lock

bool acquire(LockHandle& h, Nanoseconds deadline) {
    auto lock = h.use();
    OwnerId self = lock.arena().self();
    uint64_t thread = thread_id();
    Status status =
        wait(lock, Purpose::Acquire, deadline, [&](Nanoseconds d) { return lock->acquire(self, thread, d); });
    try {
        return acquired(status, h, "lock");
    } catch (...) {
        if (status == Status::Recovered) lock->release(self, thread);  // the warning became an exception
        throw;
    }
}

void release(LockHandle& h) {
    switch (h.use()->release(h.a->self(), thread_id())) {
        case Lock::Release::NotLocked:
            throw nb::value_error("semaphore or lock released too many times");
        case Lock::Release::NotMine:
            PyErr_SetString(PyExc_AssertionError, "attempt to release recursive lock not owned by thread");
            throw nb::python_error();
        default:
            return;
    }
}

PyObject* lock_acquire(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[2];
        parse(args, count, keywords, {"block", "timeout"}, a);
        return result(acquire(self_of<LockHandle>(self), deadline_of(a[0], a[1])));
    });
}

// acquire() for a caller that repairs the state that a dead holder left, so that no warning is needed.
PyObject* lock_take(PyObject* self, PyObject* timeout) {
    return guarded([&] {
        auto& h = self_of<LockHandle>(self);
        auto lock = h.use();
        OwnerId me = lock.arena().self();
        uint64_t thread = thread_id();
        Status status = wait(lock, Purpose::Acquire, deadline_of(Py_True, timeout),
                             [&](Nanoseconds d) { return lock->acquire(me, thread, d); });
        return result(status == Status::Recovered || acquired(status, h, "lock"));
    });
}

PyObject* lock_release(PyObject* self, PyObject*) {
    return guarded([&] {
        release(self_of<LockHandle>(self));
        return nb::none().release().ptr();
    });
}

PyObject* lock_enter(PyObject* self, PyObject*) {
    return guarded([&] { return result(acquire(self_of<LockHandle>(self), kForever)); });
}

PyObject* lock_exit(PyObject* self, PyObject* const*, Py_ssize_t) { return lock_release(self, nullptr); }

// ---- semaphore

bool acquire(SemaphoreHandle& h, Nanoseconds deadline) {
    auto semaphore = h.use();
    return acquired(
        wait(semaphore, Purpose::Acquire, deadline, [&](Nanoseconds d) { return semaphore->acquire(d); }), h,
        "semaphore");
}

PyObject* semaphore_acquire(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[2];
        parse(args, count, keywords, {"block", "timeout"}, a);
        return result(acquire(self_of<SemaphoreHandle>(self), deadline_of(a[0], a[1])));
    });
}

PyObject* semaphore_release(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[1];
        parse(args, count, keywords, {"n"}, a);
        long n = a[0] ? PyLong_AsLong(a[0]) : 1;
        if (n == -1 && PyErr_Occurred()) throw nb::python_error();
        if (n < 1) throw nb::value_error("n must be one or more");
        if (!self_of<SemaphoreHandle>(self).use()->release(static_cast<uint32_t>(n)))
            throw nb::value_error("semaphore or lock released too many times");
        return nb::none().release().ptr();
    });
}

PyObject* semaphore_enter(PyObject* self, PyObject*) {
    return guarded([&] { return result(acquire(self_of<SemaphoreHandle>(self), kForever)); });
}

PyObject* semaphore_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
    return semaphore_release(self, nullptr, 0, nullptr);
}

template <class F>
PyCFunction method(F f) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef lock_methods[] = {
    {"acquire", method(lock_acquire), METH_FASTCALL | METH_KEYWORDS,
     "acquire(block=True, timeout=None) -> bool"},
    {"_take", lock_take, METH_O, nullptr},
    {"release", lock_release, METH_NOARGS, "Release the lock."},
    {"__enter__", lock_enter, METH_NOARGS, nullptr},
    {"__exit__", method(lock_exit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef semaphore_methods[] = {
    {"acquire", method(semaphore_acquire), METH_FASTCALL | METH_KEYWORDS,
     "acquire(block=True, timeout=None) -> bool"},
    {"release", method(semaphore_release), METH_FASTCALL | METH_KEYWORDS, "release(n=1)"},
    {"__enter__", semaphore_enter, METH_NOARGS, nullptr},
    {"__exit__", method(semaphore_exit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int words_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto& h = self_of<WordsHandle>(self);
    if (h.closed()) {
        PyErr_SetString(PyExc_BufferError, "this handle is closed");
        return -1;
    }
    Words& words = *h.a->at<Words>(h.handle.offset);
    return PyBuffer_FillInfo(view, self, &words.at(0), static_cast<Py_ssize_t>(words.count() * 8), 0, flags);
}

template <class Use, class F>
bool wait_on(const Use& use, nb::handle timeout, const char* what, F f) {
    return acquired(wait(use, Purpose::Wait, deadline_from(timeout.ptr()), f), use.handle(), what);
}

}  // namespace

void bind_sync(nb::module_& m) {
    static PyType_Slot lock_slots[] = {{Py_tp_methods, lock_methods}, {0, nullptr}};
    nb::class_<LockHandle> lock(m, "Lock", nb::type_slots(lock_slots), nb::dynamic_attr(),
                                nb::is_weak_referenceable());
    bind_handle(lock);
    lock.def(
            "__init__",
            [](LockHandle* self, bool recursive) {
                new (self) LockHandle(arena().create<Lock>(Kind::Lock, Role::Plain, sizeof(Lock), recursive),
                                      Role::Plain);
            },
            nb::arg("recursive") = false)
        .def("_is_mine", [](LockHandle& h) { return h.use()->is_mine(h.a->self(), thread_id()); })
        .def("_count", [](LockHandle& h) { return h.use()->count(); })
        .def("_recursive", [](LockHandle& h) { return h.use()->recursive(); })
        .def("_owner_pid",
             [](LockHandle& h) {
                 OwnerId owner = h.use()->owner();
                 return owner ? h.a->pid_of(owner) : 0;
             })
        .def("_destroy", [](LockHandle& h) { h.use()->destroyed = 1; });

    static PyType_Slot semaphore_slots[] = {{Py_tp_methods, semaphore_methods}, {0, nullptr}};
    nb::class_<SemaphoreHandle> semaphore(m, "Semaphore", nb::type_slots(semaphore_slots), nb::dynamic_attr(),
                                          nb::is_weak_referenceable());
    bind_handle(semaphore);
    semaphore
        .def(
            "__init__",
            [](SemaphoreHandle* self, uint32_t value, uint32_t bound) {
                new (self) SemaphoreHandle(
                    arena().create<Semaphore>(Kind::Semaphore, Role::Plain, sizeof(Semaphore), value, bound),
                    Role::Plain);
            },
            nb::arg("value") = 1, nb::arg("bound") = INT_MAX)
        .def("_value", [](SemaphoreHandle& h) { return h.use()->value(); })
        .def("_destroy", [](SemaphoreHandle& h) { h.use()->destroy(); });

    nb::class_<EventHandle> event(m, "Event", nb::dynamic_attr(), nb::is_weak_referenceable());
    bind_handle(event);
    event
        .def("__init__",
             [](EventHandle* self) {
                 new (self)
                     EventHandle(arena().create<Event>(Kind::Event, Role::Plain, sizeof(Event)), Role::Plain);
             })
        .def(
            "set", [](EventHandle& h) { h.use()->set(); }, "Set the flag and wake every waiter.")
        .def(
            "clear", [](EventHandle& h) { h.use()->clear(); }, "Reset the flag.")
        .def(
            "is_set", [](EventHandle& h) { return h.use()->is_set(); }, "Return whether the flag is set.")
        .def(
            "wait",
            [](EventHandle& h, nb::handle timeout) {
                auto e = h.use();
                return wait_on(e, timeout, "event", [&](Nanoseconds d) { return e->wait(d); });
            },
            nb::arg("timeout").none() = nb::none(),
            "Wait for the flag. Returns False after `timeout` seconds.")
        .def("_destroy", [](EventHandle& h) { h.use()->destroy(); });

    nb::class_<ConditionHandle> condition(m, "Condition", nb::dynamic_attr(), nb::is_weak_referenceable());
    bind_handle(condition);
    condition
        .def("__init__",
             [](ConditionHandle* self) {
                 new (self) ConditionHandle(
                     arena().create<Condition>(Kind::Condition, Role::Plain, sizeof(Condition)), Role::Plain);
             })
        .def("_enter", [](ConditionHandle& h) { return h.use()->enter(*h.a); })
        .def(
            "_sleep",
            [](ConditionHandle& h, Offset waiter, nb::handle timeout) {
                auto c = h.use();
                return wait_on(c, timeout, "condition",
                               [&](Nanoseconds d) { return c->sleep(c.arena(), waiter, d); });
            },
            nb::arg("waiter"), nb::arg("timeout").none())
        .def("_leave", [](ConditionHandle& h, Offset waiter) { return h.use()->leave(*h.a, waiter); })
        .def("_notify", [](ConditionHandle& h, uint32_t n) { return h.use()->notify(*h.a, n); })
        .def("_destroy", [](ConditionHandle& h) { h.use()->destroy(*h.a); });

    static PyType_Slot words_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(words_buffer)},
                                        {0, nullptr}};
    nb::class_<WordsHandle> words(m, "Words", nb::type_slots(words_slots), nb::dynamic_attr(),
                                  nb::is_weak_referenceable());
    bind_handle(words);
    words
        .def(
            "__init__",
            [](WordsHandle* self, uint32_t count) {
                new (self) WordsHandle(
                    arena().create<Words>(Kind::Words, Role::Plain, Words::bytes(count), count), Role::Plain);
            },
            nb::arg("count"))
        .def("__len__", [](WordsHandle& h) { return h.use()->count(); })
        .def("__getitem__", [](WordsHandle& h, uint32_t i) { return word(*h.use(), i).load(); })
        .def("__setitem__",
             [](WordsHandle& h, uint32_t i, uint64_t value) {
                 auto w = h.use();
                 word(*w, i).store(value);
                 w->changed();
             })
        .def("add",
             [](WordsHandle& h, uint32_t i, uint64_t value) {
                 auto w = h.use();
                 uint64_t old = word(*w, i).fetch_add(value);
                 w->changed();
                 return old;
             })
        .def("swap_if",
             [](WordsHandle& h, uint32_t i, uint64_t expected, uint64_t value) {
                 auto w = h.use();
                 bool swapped = word(*w, i).compare_exchange_strong(expected, value);
                 if (swapped) w->changed();
                 return swapped;
             })
        .def(
            "wait",
            [](WordsHandle& h, uint32_t i, uint64_t value, nb::handle timeout) -> std::optional<uint64_t> {
                auto w = h.use();
                auto& waited = word(*w, i);
                if (!wait_on(w, timeout, "object", [&](Nanoseconds d) { return w->wait(i, value, d); }))
                    return {};
                return waited.load();
            },
            nb::arg("i"), nb::arg("value"), nb::arg("timeout").none() = nb::none())
        .def("_destroy", [](WordsHandle& h) { h.use()->destroy(); });
}

}  // namespace dragon::py
