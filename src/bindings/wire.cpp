// The thread that moves data between nodes, as Python's part of the agent uses it.
#include "../wire/wire.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <signal.h>

#include <thread>

#include "messages.hpp"

namespace dragon::py {

namespace {

using wire::Report;
using Name = ChannelHandle::Name;

wire::Name name_of(const Name& name) {
    auto [offset, generation, role] = name;
    return {offset, generation, role};
}
Name to_name(const wire::Name& name) { return {name.offset, name.generation, name.role}; }

// Buffers of Python objects with which the thread has finished. They are released by the next call, for which
// the first of them rings: if none came, a buffer of a shard would keep the pages that a later write needs.
class Buffers {
  public:
    // Sets the eventfd for which Python waits, or -1 once there is none.
    void ring(int fd) {
        std::lock_guard lock(mutex_);
        fd_ = fd;
    }
    void add(Py_buffer* view) {
        std::lock_guard lock(mutex_);
        if (done_.empty() && fd_ >= 0) eventfd_write(fd_, 1);
        done_.push_back(view);
    }
    void release() {
        std::vector<Py_buffer*> done;
        {
            std::lock_guard lock(mutex_);
            done.swap(done_);
        }
        for (Py_buffer* view : done) {
            PyBuffer_Release(view);
            delete view;
        }
    }

  private:
    std::mutex mutex_;
    int fd_ = -1;
    std::vector<Py_buffer*> done_;
};

// Encryption by Python's package cryptography, where there is no libcrypto: some interpreters contain
// OpenSSL. It takes the GIL for each record.
class PySeal : public wire::Seal {
  public:
    PySeal(std::string_view key) {
        Gil gil;
        auto module = nb::module_::import_("cryptography.hazmat.primitives.ciphers.aead");
        cipher_ = module.attr("AESGCM")(nb::bytes(key.data(), key.size())).release().ptr();
    }
    ~PySeal() override {
        Gil gil;
        Py_DECREF(cipher_);
    }
    void seal(char* out, const char* in, size_t size) override {
        if (!run("encrypt_into", in, size, out, size + wire::kTag))
            throw std::runtime_error("cannot encrypt");
    }
    bool open(char* out, const char* in, size_t size) override {
        return size >= wire::kTag && run("decrypt_into", in, size, out, size - wire::kTag);
    }

  private:
    struct Gil {
        PyGILState_STATE state = PyGILState_Ensure();
        ~Gil() { PyGILState_Release(state); }
    };
    bool run(const char* method, const char* in, size_t in_size, char* out, size_t out_size) {
        Gil gil;
        char nonce[12] = {};
        memcpy(nonce, &++number_, sizeof number_);
        auto view = [](const char* data, size_t size, int flags) {
            return nb::steal(
                PyMemoryView_FromMemory(const_cast<char*>(data), static_cast<Py_ssize_t>(size), flags));
        };
        try {
            nb::handle(cipher_).attr(method)(nb::bytes(nonce, sizeof nonce), view(in, in_size, PyBUF_READ),
                                             nb::none(), view(out, out_size, PyBUF_WRITE));
            return true;
        } catch (const nb::python_error&) {  // InvalidTag
            return false;
        }
    }
    PyObject* cipher_;
    uint64_t number_ = 0;
};

void seal_with_python() {
    wire::make_seal = [](std::string_view key, bool) { return std::unique_ptr<wire::Seal>(new PySeal(key)); };
}

constexpr const char* kNames[] = {"Control", "Wanted",  "Made",     "Broken",     "Ended",      "Arrived",
                                  "Proxy",   "Sent",    "Received", "SendBeside", "TakeBeside", "Client",
                                  "Left",    "Outcome", "Got",      "Failed",     "Operated",   "Log"};

class PyWire {
  public:
    explicit PyWire(uint32_t node) : wire_(std::make_unique<wire::Wire>(node, open_agent_bell())) {
        buffers_->ring(fd());
        if (!wire::find_crypto()) seal_with_python();
        // The main thread handles all signals.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::thread([this] {
            WithoutGil::for_ever();
            wire_->loop.run();
        });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    ~PyWire() { close(); }

    // Calls `f` with the wire while no other thread uses it, and sends what that has queued.
    template <class F>
    auto locked(F f) {
        buffers_->release();
        std::unique_lock lock(wire_->loop.mutex, std::try_to_lock);
        if (!lock.owns_lock()) {
            WithoutGil without;
            lock.lock();
        }
        struct Settle {
            wire::Wire& w;
            ~Settle() noexcept(false) { w.settle(); }
        } settle{*wire_};
        return f(*wire_);
    }

    void close() {
        if (!thread_.joinable()) return;
        locked([](wire::Wire& w) { w.sessions.abort_all(); });
        WithoutGil without;
        wire_->loop.stop();
        thread_.join();
        buffers_->ring(-1);
    }

    wire::Payload payload_of(nb::handle object) {
        if (object.is_none()) return {};
        auto view = std::make_unique<Py_buffer>();
        if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_SIMPLE) < 0) throw nb::python_error();
        auto* data = static_cast<const char*>(view->buf);
        auto size = static_cast<size_t>(view->len);
        std::shared_ptr<void> keep(view.release(), [buffers = buffers_](void* view) {
            buffers->add(static_cast<Py_buffer*>(view));
        });
        return {data, size, keep, nullptr};
    }

    int fd() const { return wire_->events.fd; }

    nb::list take() {
        nb::list result;
        std::vector<Report> events = locked([](wire::Wire& w) { return w.events.take(); });
        buffers_->release();  // those that rang since locked() released some
        for (Report& e : events)
            result.append(nb::make_tuple(kNames[static_cast<int>(e.kind)], e.node, e.number, e.size,
                                         to_name(e.name), e.flag, text_of(e), memory_of(e)));
        return result;
    }

  private:
    static nb::object text_of(const Report& e) {
        if (e.kind == Report::Kind::Control) return nb::bytes(e.text.data(), e.text.size());
        return nb::str(e.text.data(), e.text.size());
    }
    static nb::object memory_of(Report& e) {
        wire::Payload& p = e.payload;
        if (!p.data) return nb::int_(p.size);
        bool is_beside = e.kind == Report::Kind::SendBeside || e.kind == Report::Kind::TakeBeside;
        if (is_beside) {  // memory that the thread keeps until it is told that the transfer is finished
            auto* held = new wire::Payload(p);
            nb::object owner = nb::cast(held, nb::rv_policy::take_ownership);
            return nb::steal(PyMemoryView_FromObject(owner.ptr()));
        }
        if (p.block) {
            size_t size = p.size;
            return loan_of(*p.block->arena, p.block->pass_on(), size);
        }
        return nb::bytes(p.data, p.size);
    }

    std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
    std::unique_ptr<wire::Wire> wire_;
    std::thread thread_;
};

int payload_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto& payload = self_of<wire::Payload>(self);
    return PyBuffer_FillInfo(view, self, const_cast<char*>(payload.data),
                             static_cast<Py_ssize_t>(payload.size), 0, flags);
}

}  // namespace

void bind_wire(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(payload_buffer)}, {0, nullptr}};
    nb::class_<wire::Payload>(m, "Payload", nb::type_slots(slots),
                              "Memory of a payload that the wire's thread keeps.");
    m.def("seal_with_python", &seal_with_python, "Encrypt with Python's package cryptography from now on.");

    nb::class_<PyWire>(m, "Wire",
                       "Sends and receives data between this node and others, in a thread of its own.")
        .def(nb::init<uint32_t>(), nb::arg("node"))
        .def("close", &PyWire::close)
        .def("fileno", &PyWire::fd)
        .def("take", &PyWire::take)
        .def("add",
             [](PyWire& self, int fd, uint32_t node, nb::bytes out_key, nb::bytes in_key, nb::bytes early,
                bool plain, bool takes_beside, bool sends_beside) {
                 auto text = [](nb::bytes& b) { return std::string(b.c_str(), b.size()); };
                 wire::Made made{fd,          node,  text(out_key), text(in_key),
                                 text(early), plain, takes_beside,  sends_beside};
                 return self.locked([&](wire::Wire& w) { return w.sessions.add(std::move(made)); });
             })
        .def(
            "send",
            [](PyWire& self, uint32_t node, nb::bytes message, nb::handle payload, bool kept) {
                wire::Payload held = self.payload_of(payload);
                std::string text(message.c_str(), message.size());
                return self.locked(
                    [&](wire::Wire& w) { return w.send(node, std::move(text), std::move(held), kept); });
            },
            nb::arg("node"), nb::arg("message"), nb::arg("payload").none(), nb::arg("kept"))
        .def("end_epoch",
             [](PyWire& self, uint32_t node, const std::string& reason, bool hopeless) {
                 self.locked([&](wire::Wire& w) { w.end_epoch(node, reason, hopeless); });
             })
        .def("forget",
             [](PyWire& self, uint32_t node, const std::string& reason, const std::string& text) {
                 self.locked([&](wire::Wire& w) { w.forget(node, reason, text); });
             })
        .def("abort",
             [](PyWire& self, uint64_t connection, const std::string& reason) {
                 self.locked([&](wire::Wire& w) { w.sessions.abort(connection, reason); });
             })
        .def("connections",
             [](PyWire& self) { return self.locked([](wire::Wire& w) { return w.sessions.connections(); }); })
        .def("finish_beside",
             [](PyWire& self, uint64_t connection) {
                 self.locked([&](wire::Wire& w) { w.sessions.finish_beside(connection); });
             })
        .def("state",
             [](PyWire& self, uint32_t node) {
                 return self.locked([&](wire::Wire& w) {
                     auto& s = w.sessions;
                     bool waits = s.has_unacknowledged(node) || w.requests.waits(node);
                     return std::tuple(s.connected(node), s.was_connected(node), waits, s.has_kept(node));
                 });
             })
        .def("open_outbox",
             [](PyWire& self, uint64_t pid, Name name, bool droppable) {
                 return to_name(self.locked([&](wire::Wire& w) {
                     return w.outboxes.open(pid, name_of(name), droppable, w.own_node);
                 }));
             })
        .def("lend",
             [](PyWire& self, Name name, uint32_t kind, nb::bytes start, nb::handle buffer) {
                 wire::Payload held = self.payload_of(buffer);
                 std::string text(start.c_str(), start.size());
                 self.locked([&](wire::Wire& w) {
                     w.outboxes.lend(name_of(name), kind, std::move(text), std::move(held));
                 });
             })
        .def("why_gone",
             [](PyWire& self, Name outbox) {
                 auto why = self.locked([&](wire::Wire& w) { return w.outboxes.why_gone(name_of(outbox)); });
                 return std::tuple(why.node, why.error.kind, why.error.text, why.reason);
             })
        .def("why_lost",
             [](PyWire& self, Name name) {
                 auto error = self.locked([&](wire::Wire& w) { return w.flows.why_lost(name_of(name)); });
                 return std::tuple(error.kind, error.text);
             })
        .def("open_proxy",
             [](PyWire& self, uint64_t pid, Name name) {
                 return to_name(
                     self.locked([&](wire::Wire& w) { return w.proxies.open(pid, name_of(name)); }));
             })
        .def("dropped", [](PyWire& self, uint64_t pid,
                           Name name) { self.locked([&](wire::Wire& w) { w.dropped(pid, name_of(name)); }); })
        .def("left", [](PyWire& self,
                        uint64_t pid) { return self.locked([&](wire::Wire& w) { return w.left(pid); }); })
        .def("leave",
             [](PyWire& self, uint64_t pid, Name name) {
                 self.locked([&](wire::Wire& w) { w.outboxes.leave(pid, name_of(name)); });
             })
        .def("set_nodes",
             [](PyWire& self, uint32_t count) {
                 self.locked([&](wire::Wire& w) { w.requests.set_nodes(count); });
             })
        .def("open_desk", [](PyWire& self) { self.locked([](wire::Wire& w) { w.requests.open_desk(); }); })
        .def(
            "ask",
            [](PyWire& self, uint32_t what, Name name, nb::tuple arguments, nb::handle payload, bool waits) {
                wire::Operation o;
                o.what = static_cast<wire::Do>(what);
                o.object = name_of(name);
                o.timeout = waits ? wire::kNoLimit : 0;
                if (arguments.size() > 0) o.a = nb::cast<uint64_t>(arguments[0]);
                wire::Payload held = self.payload_of(payload);
                return self.locked([&](wire::Wire& w) { return w.requests.ask(o, std::move(held)); });
            },
            nb::arg("what"), nb::arg("name"), nb::arg("arguments"), nb::arg("payload").none(),
            nb::arg("waits"))
        .def("fail",
             [](PyWire& self, uint32_t node, uint64_t before_epoch, const std::string& text) {
                 self.locked([&](wire::Wire& w) { w.requests.fail(node, before_epoch, text); });
             })
        .def(
            "serve_shard",
            [](PyWire& self, Name words, Name lock, std::string folder, size_t capacity, uint64_t working_set,
               bool wait_for_keys, uint64_t persist_freq, std::string name, std::string where) {
                store::Settings settings{folder,       capacity, working_set, wait_for_keys,
                                         persist_freq, name,     where};
                self.locked(
                    [&](wire::Wire& w) { w.guests.shards.serve(name_of(words), name_of(lock), settings); });
            },
            nb::arg("words"), nb::arg("lock"), nb::arg("folder"), nb::arg("capacity"), nb::arg("working_set"),
            nb::arg("wait_for_keys"), nb::arg("persist_freq"), nb::arg("name"), nb::arg("where"))
        .def("forget_shard",
             [](PyWire& self, Name words) {
                 self.locked([&](wire::Wire& w) { w.guests.shards.forget(name_of(words)); });
             })
        .def("announce",
             [](PyWire& self, uint32_t node, Name name, uint64_t count) {
                 self.locked([&](wire::Wire& w) { w.guests.announce(node, name_of(name), count); });
             })
        .def("parked",
             [](PyWire& self) {
                 nb::list result;
                 for (auto& p : self.locked([](wire::Wire& w) { return w.guests.parked(); }))
                     result.append(nb::make_tuple(p.node, p.pid,
                                                  wire::kOperations[static_cast<size_t>(p.what)], p.offset,
                                                  static_cast<double>(now() - p.since) / 1e9, p.holder));
                 return result;
             })
        .def("pending",
             [](PyWire& self) {
                 nb::list result;
                 for (auto& p : self.locked([](wire::Wire& w) { return w.requests.pending(); }))
                     result.append(nb::make_tuple(p.pid, p.node,
                                                  wire::kOperations[static_cast<size_t>(p.what)],
                                                  static_cast<double>(now() - p.since) / 1e9));
                 return result;
             })
        .def("look_at_all", [](PyWire& self) { self.locked([](wire::Wire& w) { w.look_at_all(); }); })
        .def("trace", [](PyWire& self, bool on) { self.locked([&](wire::Wire& w) { w.trace(on); }); });
}

}  // namespace dragon::py
