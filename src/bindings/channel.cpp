#include "messages.hpp"

namespace dragon::py {

namespace {

[[noreturn]] void raise_destroyed(const ChannelHandle& h) {
    raise(python.destroyed, ("the " + described("queue", h) + " was destroyed").c_str());
}

// Calls `f` with the channel of a handle. Raises DestroyedError if the channel was destroyed.
template <class F>
auto look(ChannelHandle& h, F f) {
    auto channel = h.use();
    if (channel->destroyed.load()) raise_destroyed(h);
    return f(*channel);
}

// Raises the exception of a wait that failed, as users of a queue or a connection expect it.
void check(Status status, const ChannelHandle& h, PyObject* timed_out) {
    switch (status) {
        case Status::Timeout:
            PyErr_SetNone(timed_out);
            throw nb::python_error();
        case Status::Destroyed:
            raise_destroyed(h);
        case Status::EndOfFile:
            raise(PyExc_EOFError, "every writing end is closed");
        case Status::Broken:
            errno = EPIPE;
            PyErr_SetFromErrno(PyExc_OSError);
            throw nb::python_error();
        default:
            return;
    }
}

Destination destination(ChannelHandle& h, Nanoseconds deadline, uint64_t ticket = 0) {
    return {h.use(), deadline, ticket};
}

PyObject* put(PyObject* self, PyObject* object, Nanoseconds deadline) {
    auto& h = self_of<ChannelHandle>(self);
    check(put_object(destination(h, deadline), object), h, python.queue_full);
    return nb::none().release().ptr();
}

// Takes a message; returns the arena that contains it.
Arena& take(ChannelHandle& h, Message& message, Nanoseconds deadline,
            std::atomic<uint64_t>* taker = nullptr) {
    auto channel = h.use();
    Arena& a = channel.arena();
    Status status = wait(channel, Purpose::Get, deadline,
                         [&](Nanoseconds d) { return channel->get(a, message, d, taker); });
    check(status, h, python.queue_empty);
    return a;
}

PyObject* get(PyObject* self, Nanoseconds deadline) {
    auto& h = self_of<ChannelHandle>(self);
    Message message;
    return to_object(take(h, message, deadline), message);
}

PyObject* method_put(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[5];  // the last two are accepted and ignored: an object is one message, sent at once
        parse(args, count, keywords, {"obj", "block", "timeout", "stream_channel", "flush"}, a);
        if (!a[0]) throw nb::type_error("put() needs an object");
        return put(self, a[0], deadline_of(a[1], a[2]));
    });
}

PyObject* method_put_nowait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[3];
        parse(args, count, keywords, {"obj", "stream_channel", "flush"}, a);
        if (!a[0]) throw nb::type_error("put_nowait() needs an object");
        return put(self, a[0], 0);
    });
}

PyObject* method_get(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[3];
        parse(args, count, keywords, {"block", "timeout", "stream_channel"}, a);
        return get(self, deadline_of(a[0], a[1]));
    });
}

PyObject* method_get_nowait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&] {
        PyObject* a[1];
        parse(args, count, keywords, {"stream_channel"}, a);
        return get(self, 0);
    });
}

using Name = ChannelHandle::Name;
Handle handle_of(const Name& name) { return {std::get<0>(name), std::get<1>(name)}; }

// The bytes of a Python object.
class View {
  public:
    explicit View(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) < 0) throw nb::python_error();
    }
    View(const View&) = delete;
    ~View() { PyBuffer_Release(&view_); }
    const char* data() const { return static_cast<const char*>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }

  private:
    Py_buffer view_;
};

void put_bytes(ChannelHandle& h, nb::handle buffer, size_t start, size_t size) {
    View view(buffer);
    if (start > view.size() || size > view.size() - start)
        throw nb::value_error("buffer length < offset + size");
    check(put_raw(destination(h, kForever), view.data() + start, size), h, python.queue_full);
}

void put_task(ChannelHandle& h, nb::handle object, uint64_t ticket) {
    check(put_object(destination(h, kForever, ticket), object.ptr()), h, python.queue_full);
}

nb::object get_task(ChannelHandle& h, WordsHandle& doing, uint32_t index) {
    auto words = doing.use();
    std::atomic<uint64_t>& mine = word(*words, index);
    mine.store(0);
    Message message;
    return nb::steal(to_object(take(h, message, kForever, &mine), message));
}

void put_taken(ChannelHandle& h, uint32_t kind, nb::handle buffer, nb::handle timeout, uint64_t ticket) {
    View view(buffer);
    check(put_parts(destination(h, deadline_from(timeout.ptr()), ticket), kind, view.data(), view.size()), h,
          python.queue_full);
}

void put_back(ChannelHandle& h, uint32_t kind, nb::handle buffer) {
    View view(buffer);
    check(put_parts({h.use(), 0, 0, Side::Front}, kind, view.data(), view.size()), h, python.queue_full);
}

nb::tuple get_parts(ChannelHandle& h, nb::handle timeout) {
    Message message;
    return to_parts(take(h, message, deadline_from(timeout.ptr())), message);
}

void put_frames_of(ChannelHandle& h, nb::bytes head, nb::list buffers, nb::handle timeout) {
    check(put_frames(destination(h, deadline_from(timeout.ptr())), head.ptr(), buffers.ptr()), h,
          python.queue_full);
}

nb::tuple get_frames(ChannelHandle& h, nb::handle timeout) {
    Message message;
    return to_frames(take(h, message, deadline_from(timeout.ptr())), message);
}

void put_lent(ChannelHandle& h, uint32_t kind, nb::handle loan) {
    auto channel = h.use();
    check(put_loan(channel.arena(), *channel, kind, loan), h, python.queue_full);
}

nb::object get_bytes(ChannelHandle& h, nb::handle timeout) {
    Message message;
    return nb::steal(to_bytes(take(h, message, deadline_from(timeout.ptr())), message));
}

bool wait_readable(ChannelHandle& h, nb::handle timeout) {
    auto channel = h.use();
    Status status = wait(channel, Purpose::Read, deadline_from(timeout.ptr()),
                         [&](Nanoseconds d) { return channel->wait_readable(d); });
    if (status == Status::Destroyed) raise_destroyed(h);
    return status == Status::Ok;
}

bool join(ChannelHandle& h, nb::handle timeout) {
    auto channel = h.use();
    Status status = wait(channel, Purpose::Join, deadline_from(timeout.ptr()),
                         [&](Nanoseconds d) { return channel->join(d); });
    if (status == Status::Destroyed) raise_destroyed(h);
    return status == Status::Ok;
}

int fileno(ChannelHandle& h) {
    auto channel = h.use();
    int fd = open_bell(h.handle);
    channel->enable_bell(channel.arena(), Channel::kOwn);
    return fd;
}

PyMethodDef methods[] = {
    {"put", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method_put)),
     METH_FASTCALL | METH_KEYWORDS,
     "put(obj, block=True, timeout=None)\n\nPut a copy of an object. Raises queue.Full after `timeout` "
     "seconds."},
    {"put_nowait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method_put_nowait)),
     METH_FASTCALL | METH_KEYWORDS, "Put an object, or raise queue.Full."},
    {"get", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method_get)),
     METH_FASTCALL | METH_KEYWORDS,
     "get(block=True, timeout=None)\n\nTake the oldest object. Raises queue.Empty after `timeout` seconds."},
    {"get_nowait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method_get_nowait)),
     METH_FASTCALL | METH_KEYWORDS, "Take the oldest object, or raise queue.Empty."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_channel(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, nullptr}};
    bind_loan(m);
    nb::class_<ChannelHandle> c(m, "Channel", nb::type_slots(slots), nb::dynamic_attr(),
                                nb::is_weak_referenceable(),
                                "A first-in first-out queue of objects in shared memory.");
    bind_handle(c);
    c.def(
         "__init__",
         [](ChannelHandle* self, uint64_t capacity, bool pipe, uint32_t role, uint64_t maker, Name results,
            Name doing, uint16_t mebibytes) {
             auto r = static_cast<Role>(role);
             if (role > 2 || (role && !pipe)) throw nb::value_error("only a pipe has ends: roles 1 and 2");
             Arena& a = arena();
             Origin origin{maker ? a.next_queue() : 0, maker, handle_of(results), handle_of(doing)};
             new (self) ChannelHandle(
                 a.create<Channel>(Kind::Channel, r, sizeof(Channel), capacity, pipe, origin, mebibytes), r);
         },
         nb::arg("capacity") = 0, nb::arg("pipe") = false, nb::arg("role") = 0, nb::arg("maker") = 0,
         nb::arg("results") = Name(), nb::arg("doing") = Name(), nb::arg("mebibytes") = 0)
        .def("_put_bytes", &put_bytes)
        .def("_get_bytes", &get_bytes, nb::arg("timeout").none())
        .def("_put_task", &put_task, nb::arg("task").none(), nb::arg("ticket"))
        .def("_get_task", &get_task, nb::arg("doing"), nb::arg("index"))
        .def("_put_parts", &put_taken, nb::arg("kind"), nb::arg("buffer"), nb::arg("timeout").none(),
             nb::arg("ticket") = 0)
        .def("_put_back", &put_back, nb::arg("kind"), nb::arg("buffer"))
        .def("_get_parts", &get_parts, nb::arg("timeout").none())
        .def("_put_frames", &put_frames_of, nb::arg("head"), nb::arg("buffers"), nb::arg("timeout").none())
        .def("_get_frames", &get_frames, nb::arg("timeout").none())
        .def_static("_before_frame", &before_frame, nb::arg("head"), nb::arg("size"))
        .def("_put_loan", &put_lent, nb::arg("kind"), nb::arg("loan"))
        .def("_wait_readable", &wait_readable, nb::arg("timeout").none())
        .def("_fileno", &fileno)
        .def("_holder",
             [](ChannelHandle& h) {
                 OwnerId holder = h.use()->holder();
                 return holder ? h.a->pid_of(holder) : 0;
             })
        .def("_size", [](ChannelHandle& h) { return look(h, [](Channel& c) { return c.size(); }); })
        .def("_taken", [](ChannelHandle& h) { return look(h, [](Channel& c) { return c.taken(); }); })
        .def("_capacity", [](ChannelHandle& h) { return h.use()->capacity(); })
        .def("_bytes", [](ChannelHandle& h) { return look(h, [](Channel& c) { return c.bytes(); }); })
        .def("_full", [](ChannelHandle& h) { return look(h, [](Channel& c) { return c.full(); }); })
        .def("_task_done", [](ChannelHandle& h) { return look(h, [](Channel& c) { return c.task_done(); }); })
        .def("_join", &join, nb::arg("timeout").none())
        .def(
            "_refuse", [](ChannelHandle& h, bool refuse) { h.use()->refuse(refuse); }, nb::arg("refuse"))
        .def("_destroy", [](ChannelHandle& h) { h.use()->destroy(*h.a); });
}

}  // namespace dragon::py
