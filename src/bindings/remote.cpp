// How processes ask their agent's wire to perform operations on objects: blocking, and from event loops.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "../wire/shards.hpp"
#include "messages.hpp"
#include "store.hpp"

namespace dragon::py {

namespace {

using wire::Do;
using wire::Operation;
using Name = ChannelHandle::Name;

constexpr Nanoseconds kConfirmed = 300'000'000;  // for the agent's answer to a cancellation

wire::Name name_of(const Name& name) {
    auto [offset, generation, role] = name;
    return {offset, generation, role};
}

// A channel for answers, of one thread or one event loop.
struct Answers {
    pid_t pid = getpid();
    ChannelHandle channel{arena().create<Channel>(Kind::Channel, Role::Plain, sizeof(Channel), 0, false),
                          Role::Plain};
};

// Those of this thread that are not in use. A signal handler that asks meanwhile, or the garbage collector,
// takes another. Python knows the thread no more when this is destroyed, so it has no GIL to release.
struct Spare : std::vector<std::unique_ptr<Answers>> {
    ~Spare() {
        WithoutGil::for_ever();
        for (auto& answers : *this) {
            try {
                if (answers->pid == getpid()) answers->channel.close();
            } catch (const std::exception&) {
                // The end of the process releases it.
            }
            answers.release();
        }
    }
};
thread_local Spare spare;

std::unique_ptr<Answers> take_answers() {
    while (!spare.empty()) {
        auto answers = std::move(spare.back());
        spare.pop_back();
        // A forked child leaves its parent's alone.
        if (answers->pid == getpid() && is_current(answers->channel.a)) return answers;
        answers.release();
    }
    return std::make_unique<Answers>();
}

// The desk of this process's run.
ChannelHandle& desk() {
    static PatientMutex mutex;
    static std::unique_ptr<ChannelHandle> known;
    static pid_t pid = 0;
    std::lock_guard lock(mutex);
    if (!known || pid != getpid() || !is_current(known->a)) {
        Handle handle = arena().desk();
        if (!handle.offset) throw ObjectDestroyed("the object is on another node, and this run has only one");
        arena().attach(handle, Kind::Channel, Role::Plain);
        known.release();  // of another run, or of the parent process
        known = std::make_unique<ChannelHandle>(handle, Role::Plain);
        pid = getpid();
    }
    return *known;
}

uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return ++last;
}

void put_on_desk(const Operation& operation, std::string_view payload = {}) {
    std::string message(reinterpret_cast<const char*>(&operation), sizeof operation);
    message.append(payload);
    put_parts({desk().use(), kForever}, 0, message.data(), message.size());
}

Operation operation_of(uint32_t what, const Name& object, nb::tuple arguments, nb::handle timeout) {
    if (what >= static_cast<uint32_t>(Do::kCount)) throw nb::value_error("no such operation");
    Operation o;
    o.what = static_cast<Do>(what);
    o.object = name_of(object);
    o.number = next_number();
    o.pid = static_cast<uint64_t>(getpid());
    o.owner = arena().self();
    o.thread = thread_id();
    o.timeout = timeout.is_none()
                    ? wire::kNoLimit
                    : static_cast<Nanoseconds>(std::min(std::max(nb::cast<double>(timeout), 0.0), 1e9) * 1e9);
    uint64_t* places[] = {&o.a, &o.b, &o.c};
    for (size_t i = 0; i < std::min<size_t>(arguments.size(), 3); ++i)
        *places[i] = PyLong_AsUnsignedLongLongMask(nb::object(arguments[i]).ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    return o;
}

bool is_undoable(const Operation& o) {
    return o.what == Do::LockAcquire || o.what == Do::SemaphoreAcquire ||
           (o.what == Do::ChannelGet && !o.words.offset);
}

// Undoes what was done although an exception interrupted the wait for it.
void undo(Arena& a, Operation o, const Message& message) {
    bool is_result = message.label.kind == wire::kResult;
    wire::Result result;
    if (is_result) memcpy(&result, message.data, sizeof result);
    if (!is_undoable(o) || (is_result ? !result.done : message.label.kind >= wire::kBytes)) return;
    o.silent = 1;
    o.timeout = 0;
    if (o.what == Do::ChannelGet) {
        o.what = Do::ChannelPutBack;
        o.a = message.label.kind;
        const char* data = message.block ? a.at<char>(message.block) + kDataStart : message.data;
        put_on_desk(o, std::string_view(data, message.label.size));
    } else {
        o.what = o.what == Do::LockAcquire ? Do::LockRelease : Do::SemaphoreRelease;
        o.a = 1;
        put_on_desk(o);
    }
}

void free_block(Arena& a, Message& message) {
    if (message.block) a.free(message.block);
    message.block = 0;
}

// Cancels an operation. Returns whether the channel for its answer can be used again.
bool cancel(Answers& answers, const Operation& operation) {
    Arena& a = *answers.channel.a;
    Channel& channel = *a.at<Channel>(answers.channel.handle.offset);
    Operation cancelling = operation;
    cancelling.what = Do::Cancel;
    Message message;
    Status status;
    {
        nb::error_scope scope;
        put_on_desk(cancelling);
        WithoutGil without;
        for (Nanoseconds end = now() + kConfirmed;
             (status = channel.get(a, message, end)) == Status::Interrupted;);
    }
    if (status == Status::Ok) {
        if (message.label.kind != wire::kCancelled) undo(a, operation, message);
        free_block(a, message);
        return true;
    }
    // The agent does not answer. It undoes what it cannot deliver.
    channel.refuse(true);
    while (channel.get(a, message, 0) == Status::Ok) {
        if (message.label.kind != wire::kCancelled) undo(a, operation, message);
        free_block(a, message);
    }
    channel.destroy(a);
    return false;
}

// What an answer is for Python: (1, value), (0, None) if it was not done in time.
nb::tuple to_python(Arena& a, Message& message, bool as_bytes) {
    if (message.label.kind == wire::kResult) {
        wire::Result result;
        memcpy(&result, message.data, sizeof result);
        return nb::make_tuple(result.done ? 1 : 0, result.value);
    }
    if (message.label.kind == wire::kError) {
        const char* data = message.block ? a.at<char>(message.block) + kDataStart : message.data;
        wire::Error error = wire::Error::decoded({data, message.label.size});
        free_block(a, message);
        raise_named(error.kind, error.text);
    }
    if (message.label.kind == wire::kBytes) {
        message.label.kind = kBytes;
        return nb::make_tuple(1, nb::steal(to_object(a, message)));
    }
    return nb::make_tuple(1, nb::steal(as_bytes ? to_bytes(a, message) : to_object(a, message)));
}

// Has an operation performed, and waits for the answer until the deadline. Returns the state: 1 if there is
// an answer, 2 if the agents did not answer in time, and 3 if `handle` was closed meanwhile.
int ask(Operation& o, std::string_view payload, Nanoseconds deadline, nb::handle handle, Arena*& a,
        Message& message) {
    auto answers = take_answers();
    o.answers = answers->channel.handle;
    a = answers->channel.a;
    int state = -1;
    put_on_desk(o, payload);
    try {
        auto use = answers->channel.use();
        while (state < 0) {
            Nanoseconds until = std::min(deadline, now() + 1'000'000'000);
            Status status = dragon::py::wait(use, Purpose::None, until,
                                             [&](Nanoseconds d) { return use->get(*a, message, d); });
            if (status == Status::Ok)
                state = 1;
            else if (status == Status::Destroyed)
                throw ObjectDestroyed("the run has ended");
            else if (in_python(PyErr_CheckSignals) != 0)  // of a signal that arrived between two sleeps
                throw nb::python_error();
            else if (!handle.is_none() && truth(nb::object(handle.attr("_remote_closed")).ptr()))
                state = 3;
            else if (deadline != kForever && now() >= deadline)
                state = 2;
        }
    } catch (const ObjectDestroyed& error) {
        if (is_current(a) && a->kept()) throw;
        nb::object ended = nb::module_::import_("dragon.infrastructure.errors").attr("RunEndedError");
        raise(ended.ptr(), error.what());
    } catch (...) {
        bool is_usable = is_current(a) && a->kept() && cancel(*answers, o);
        if (is_usable) spare.push_back(std::move(answers));
        throw;
    }
    if (state != 1) {
        if (cancel(*answers, o)) spare.push_back(std::move(answers));
        return state;
    }
    spare.push_back(std::move(answers));
    // A signal that came together with the answer: what its handler raises must not lose the message, or the
    // lock.
    if (in_python(PyErr_CheckSignals) != 0) {
        nb::python_error raised;
        undo(*a, o, message);
        free_block(*a, message);
        throw raised;
    }
    return state;
}

// Performs an operation and returns (state, value): state 1 if it was done, 0 if it was not done in time, and
// those of ask().
nb::tuple operate(uint32_t what, Name object, nb::tuple arguments, nb::handle payload, nb::handle timeout,
                  nb::handle limit, uint64_t ticket, Name words, bool as_bytes, nb::handle handle,
                  uint32_t kind) {
    Operation o = operation_of(what, object, arguments, timeout);
    o.kind = static_cast<Kind>(kind);
    o.ticket = ticket;
    o.words = name_of(words);
    Arena* a;
    Message message;
    int state = ask(o, Memory(payload).text(), deadline_from(limit.ptr()), handle, a, message);
    return state == 1 ? to_python(*a, message, as_bytes) : nb::make_tuple(state, nb::none());
}

// Performs an operation on a shard. Returns (state, value): 1 if it was done, with a record as (head, blobs)
// or with a number; 0 if the key is missing, with whether it may be with another manager; 2 if it is not done
// so, and 3 if the agents did not answer within `limit` seconds. A spread puts the record with `others` too,
// with flags of their own.
nb::tuple operate_on_shard(uint32_t what, Name words, nb::bytes key, nb::object record, uint64_t checkpoint,
                           uint64_t flags, nb::handle limit, const std::vector<Name>& others,
                           uint64_t flags_of_others) {
    nb::tuple elsewhere = nb::make_tuple(2, nb::none());
    std::string payload;
    for (const Name& each : others) {
        wire::Name other = name_of(each);
        payload.append(reinterpret_cast<const char*>(&other), sizeof other);
    }
    auto size = static_cast<uint32_t>(key.size());
    payload.append(reinterpret_cast<const char*>(&size), sizeof size).append(key.c_str(), size);
    if (!record.is_none()) {
        Given given(record);
        if (given.record.size() > (others.empty() ? wire::kSmallRecord : wire::kSpreadRecord))
            return elsewhere;
        payload += wire::encoded(given.record);
    }
    Operation o =
        operation_of(what, words, nb::make_tuple(checkpoint, flags, others.size()), nb::float_(0.0));
    o.ticket = flags_of_others;
    Arena* a;
    Message message;
    if (ask(o, payload, deadline_from(limit.ptr()), nb::none(), a, message) != 1)
        return nb::make_tuple(3, nb::none());
    if (message.label.kind == wire::kResult) {
        wire::Result result;
        memcpy(&result, message.data, sizeof result);
        if (result.done) return nb::make_tuple(1, result.value);
        if (result.value == wire::kElsewhere) return elsewhere;
        return nb::make_tuple(0, result.value != 0);
    }
    if (message.label.kind != wire::kRecord) return to_python(*a, message, false);
    const char* data = message.block ? a->at<char>(message.block) + kDataStart : message.data;
    store::Record found = wire::decoded({data, message.label.size});
    nb::list blobs;
    for (auto blob : found.blobs) blobs.append(nb::bytearray(blob.data(), blob.size()));
    nb::tuple value = nb::make_tuple(nb::bytes(found.head.data(), found.head.size()), blobs);
    free_block(*a, message);
    return nb::make_tuple(1, value);
}

// Conversions of an object to a message and back, by way of a channel of this thread. Pickling may run code
// that needs another one.
nb::tuple parts_of(nb::handle object) {
    auto answers = take_answers();
    Arena& a = *answers->channel.a;
    put_object({answers->channel.use(), kForever}, object.ptr());
    Message message;
    if (answers->channel.use()->get(a, message, 0) != Status::Ok) throw StillLocked();
    nb::tuple parts = to_parts(a, message);
    spare.push_back(std::move(answers));
    return parts;
}

nb::object object_of(uint32_t kind, nb::handle data) {
    auto answers = take_answers();
    Arena& a = *answers->channel.a;
    Memory memory(data);
    put_parts({answers->channel.use(), kForever}, kind, memory.text().data(), memory.text().size());
    Message message;
    if (answers->channel.use()->get(a, message, 0) != Status::Ok) throw StillLocked();
    nb::object object = nb::steal(to_object(a, message));
    spare.push_back(std::move(answers));
    return object;
}

// Has an operation performed without an answer.
void tell(uint32_t what, uint32_t kind, Name object) {
    Operation o = operation_of(what, object, nb::make_tuple(), nb::float_(0.0));
    o.kind = static_cast<Kind>(kind);
    o.silent = 1;
    put_on_desk(o);
}

// The operations of an event loop that are not answered. Its descriptor is readable when answers are there.
class Line {
  public:
    int fileno() {
        auto channel = answers_.channel.use();
        int fd = open_bell(answers_.channel.handle);
        channel->enable_bell(*answers_.channel.a, Channel::kOwn);
        return fd;
    }
    uint64_t ask(uint32_t what, Name object, nb::tuple arguments, uint64_t thread) {
        Operation o = operation_of(what, object, arguments, nb::none());
        o.answers = answers_.channel.handle;
        if (thread) o.thread = thread;
        put_on_desk(o);
        asked_[o.number] = o;
        return o.number;
    }
    // The answers that are there: (number, whether it was cancelled, value or None, error or None).
    nb::list take() {
        nb::list result;
        auto channel = answers_.channel.use();
        Arena& a = *answers_.channel.a;
        Message message;
        while (channel->get(a, message, 0) == Status::Ok) {
            uint64_t number = message.label.ticket;
            asked_.erase(number);
            bool cancelled = message.label.kind == wire::kCancelled;
            nb::object value = nb::none(), error = nb::none();
            try {
                if (!cancelled) value = to_python(a, message, false)[1];
            } catch (nb::python_error& raised) {
                error = nb::borrow(raised.value());
            }
            free_block(a, message);
            result.append(nb::make_tuple(number, cancelled, value, error));
        }
        return result;
    }
    void cancel(uint64_t number) {
        auto found = asked_.find(number);
        if (found == asked_.end()) return;
        Operation o = found->second;
        o.what = Do::Cancel;
        put_on_desk(o);
    }
    void close() { answers_.channel.close(); }

  private:
    Answers answers_;
    std::map<uint64_t, Operation> asked_;
};

}  // namespace

void bind_remote(nb::module_& m) {
    nb::dict operations;
    for (size_t i = 1; i < std::size(wire::kOperations); ++i) operations[wire::kOperations[i]] = i;
    m.attr("OPERATIONS") = operations;
    m.def("desk", [] {
        Handle handle = arena().desk();
        return Name{handle.offset, handle.generation, node_index << kNodeShift};
    });
    m.def("operate", &operate, nb::arg("what"), nb::arg("name"), nb::arg("arguments") = nb::make_tuple(),
          nb::arg("payload").none() = nb::none(), nb::arg("timeout").none() = 0.0,
          nb::arg("limit").none() = nb::none(), nb::arg("ticket") = 0, nb::arg("words") = Name(),
          nb::arg("as_bytes") = false, nb::arg("handle").none() = nb::none(), nb::arg("kind") = 0);
    m.def("operate_on_shard", &operate_on_shard, nb::arg("what"), nb::arg("words"), nb::arg("key"),
          nb::arg("record").none(), nb::arg("checkpoint"), nb::arg("flags"), nb::arg("limit").none(),
          nb::arg("others") = std::vector<Name>(), nb::arg("flags_of_others") = 0);
    m.def("parts_of", &parts_of, nb::arg("obj").none());
    m.def("object_of", &object_of, nb::arg("kind"), nb::arg("data"));
    m.def("tell", &tell, nb::arg("what"), nb::arg("kind"), nb::arg("name"));
    nb::class_<Line>(m, "Line", "The operations on objects that an event loop waits for.")
        .def(nb::init<>())
        .def("fileno", &Line::fileno)
        .def("ask", &Line::ask, nb::arg("what"), nb::arg("name"), nb::arg("arguments"), nb::arg("thread"))
        .def("take", &Line::take)
        .def("cancel", &Line::cancel)
        .def("close", &Line::close);
}

}  // namespace dragon::py
