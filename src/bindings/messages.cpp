#include "messages.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "large_bytes.hpp"

namespace dragon::py {

namespace {

template <class... Arguments>
PyObject* call(PyObject* function, Arguments*... arguments) {
    return in_python([&] { return PyObject_CallFunctionObjArgs(function, arguments..., nullptr); });
}

// A block of this process that is freed unless it is passed on.
class OwnBlock {
  public:
    OwnBlock(Arena& a, Offset block) : a_(a), block_(block) {}
    OwnBlock(const OwnBlock&) = delete;
    ~OwnBlock() {
        if (block_) a_.free(block_);
    }
    char* data() const { return a_.at<char>(block_) + kDataStart; }
    Offset offset() const { return block_; }
    Offset pass_on() {
        Offset block = block_;
        block_ = 0;
        return block;
    }

  private:
    Arena& a_;
    Offset block_;
};

OwnBlock new_block(Arena& a, Channel& channel, size_t size) {
    if (size >= kCopyWithoutGil && !channel.has_room(a, size)) {
        WithoutGil without;
        channel.await_room(a, size);
    }
    return {a, a.allocate(size)};
}

Status put_block(const Destination& to, Label label, OwnBlock& block) {
    Status status = wait(to.channel, Purpose::Put, to.deadline, [&](Nanoseconds d) {
        return to.channel->put_block(to.channel.arena(), label, block.offset(), d, to.side);
    });
    if (status == Status::Ok) block.pass_on();
    return status;
}

Status put_bytes(const Destination& to, uint32_t kind, const void* data, size_t size) {
    Label label{kind, size, to.ticket};
    if (size <= kSmall)
        return wait(to.channel, Purpose::Put, to.deadline, [&](Nanoseconds d) {
            return to.channel->put_small(to.channel.arena(), label, data, d, to.side);
        });
    // Do not copy a message that would be refused anyway.
    if (to.deadline == 0 && to.side == Side::Back && to.channel->full()) return Status::Timeout;
    OwnBlock block = new_block(to.channel.arena(), *to.channel, kDataStart + size);
    copy(block.data(), data, size);
    return put_block(to, label, block);
}

// The start of a message with buffers.
struct BufferTable {
    uint64_t head_size, count;
    struct {
        uint64_t start, size;
    } buffers[];
};

// Checks a message that came from another node or was put as raw parts, before it is used.
const BufferTable& checked(const char* data, size_t size) {
    auto* table = reinterpret_cast<const BufferTable*>(data);
    auto lies_within = [&](uint64_t start, uint64_t length) {
        return start <= size && length <= size - start;
    };
    bool whole =
        size >= sizeof(BufferTable) &&
        table->count <= (size - sizeof(BufferTable)) / sizeof(BufferTable::buffers[0]) &&
        lies_within(sizeof(BufferTable) + table->count * sizeof(BufferTable::buffers[0]), table->head_size);
    for (size_t i = 0; whole && i < table->count; ++i)
        whole = lies_within(table->buffers[i].start, table->buffers[i].size);
    if (!whole) throw nb::value_error("a message is damaged: its parts do not lie in it");
    return *table;
}

size_t aligned(size_t n) { return (n + 63) / 64 * 64; }

// The positions of the head and of the first buffer in a message of `count` buffers.
size_t head_start(size_t count) { return sizeof(BufferTable) + count * sizeof(BufferTable::buffers[0]); }
size_t first_buffer(size_t count, size_t head_size) { return aligned(head_start(count) + head_size); }

struct Views {
    std::vector<Py_buffer> views;
    ~Views() {
        for (auto& view : views) PyBuffer_Release(&view);
    }
};

// Puts bytes as a message of kind `alone`, or bytes together with buffers as one of kind `beside`.
Status put_with_buffers(const Destination& to, MessageKind alone, MessageKind beside, PyObject* bytes,
                        PyObject* buffers) {
    char* data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0) throw nb::python_error();
    Py_ssize_t count = buffers == Py_None ? 0 : PyList_Size(buffers);
    if (count <= 0) return put_bytes(to, alone, data, static_cast<size_t>(size));
    Views held;
    held.views.reserve(static_cast<size_t>(count));
    size_t first = first_buffer(static_cast<size_t>(count), static_cast<size_t>(size)), total = first;
    for (Py_ssize_t i = 0; i < count; ++i) {
        Py_buffer view;
        if (in_python([&] {
                return PyObject_GetBuffer(PyList_GetItem(buffers, i), &view, PyBUF_ANY_CONTIGUOUS);
            }) < 0)
            throw nb::python_error();
        held.views.push_back(view);
        total += aligned(static_cast<size_t>(view.len));
    }
    OwnBlock block = new_block(to.channel.arena(), *to.channel, kDataStart + total);
    auto* table = reinterpret_cast<BufferTable*>(block.data());
    table->head_size = static_cast<uint64_t>(size);
    table->count = static_cast<uint64_t>(count);
    size_t start = first;
    for (size_t i = 0; i < held.views.size(); ++i) {
        auto length = static_cast<size_t>(held.views[i].len);
        table->buffers[i] = {start, length};
        copy(block.data() + start, held.views[i].buf, length);
        start += aligned(length);
    }
    memcpy(&table->buffers[count], data, static_cast<size_t>(size));
    return put_block(to, {beside, total, to.ticket}, block);
}

Status put_pickle(const Destination& to, PyObject* pickle, PyObject* buffers) {
    return put_with_buffers(to, kPickle, kPickleBuffers, pickle, buffers);
}

// Whether the object is plain, or a container of a few plain objects: pickle then needs no reducer.
bool is_plain(PyObject* object, int depth) {
    if (object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
        PyFloat_CheckExact(object) || PyUnicode_CheckExact(object))
        return true;
    if (PyBytes_CheckExact(object)) return PyBytes_Size(object) < 4096;
    if (depth == 0) return false;
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
        Py_ssize_t n = PySequence_Size(object);
        if (n > 16) return false;
        for (Py_ssize_t i = 0; i < n; ++i) {
            // An own reference: another thread may remove the item from a list.
            nb::object item = nb::steal(PySequence_GetItem(object, i));
            if (!item.is_valid()) PyErr_Clear();
            if (!item.is_valid() || !is_plain(item.ptr(), depth - 1)) return false;
        }
        return true;
    }
    return false;
}

Status put_any(const Destination& to, PyObject* object) {
    if (is_plain(object, 3)) {
        nb::object pickle = nb::steal(call(python.pickle_dumps, object, nb::int_(5).ptr()));
        if (!pickle.is_valid()) throw nb::python_error();
        return put_pickle(to, pickle.ptr(), Py_None);
    }
    nb::object pair = nb::steal(call(python.serializer, object));
    if (!pair.is_valid()) throw nb::python_error();
    if (!PyTuple_Check(pair.ptr()) || PyTuple_Size(pair.ptr()) != 2)
        throw nb::type_error("the serializer returns a pickle and its buffers");
    return put_pickle(to, PyTuple_GetItem(pair.ptr(), 0), PyTuple_GetItem(pair.ptr(), 1));
}

// A block that Python objects use directly (arrays received without a copy); freed with the last of them.
struct Loan {
    Arena* a;
    Offset block;
    OwnerId owner;
    size_t size;
    ~Loan() {
        if (block && is_current(a) && a->self() == owner) a->free(block);
    }
};

int loan_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto& loan = self_of<Loan>(self);
    return PyBuffer_FillInfo(view, self, loan.a->at<char>(loan.block) + kDataStart,
                             static_cast<Py_ssize_t>(loan.size), 0, flags);
}

// Returns the head and the buffers of a message as memory on loan.
std::pair<nb::object, nb::list> borrow_buffers(Arena& a, Message& message) {
    Offset block = message.block;
    message.block = 0;
    nb::object loan =
        nb::cast(new Loan{&a, block, a.self(), message.label.size}, nb::rv_policy::take_ownership);
    auto* table = &checked(a.at<char>(block) + kDataStart, message.label.size);
    nb::object whole = nb::steal(PyMemoryView_FromObject(loan.ptr()));
    if (!whole.is_valid()) throw nb::python_error();
    auto slice = [&](size_t start, size_t size) {
        return nb::object(whole[nb::slice(nb::cast(start), nb::cast(start + size), nb::none())]);
    };
    nb::list buffers;
    for (size_t i = 0; i < table->count; ++i)
        buffers.append(slice(table->buffers[i].start, table->buffers[i].size));
    return {slice(head_start(table->count), table->head_size), buffers};
}

// The same for a message that is not in a block, such as a small one of another node: returns copies, which
// are writable.
std::pair<nb::object, nb::list> copy_buffers(const char* data, size_t size) {
    auto* table = &checked(data, size);
    auto piece = [&](size_t start, size_t size) {
        nb::object copied =
            nb::steal(PyByteArray_FromStringAndSize(data + start, static_cast<Py_ssize_t>(size)));
        if (!copied.is_valid()) throw nb::python_error();
        return copied;
    };
    nb::list buffers;
    for (size_t i = 0; i < table->count; ++i)
        buffers.append(piece(table->buffers[i].start, table->buffers[i].size));
    return {piece(head_start(table->count), table->head_size), buffers};
}

PyObject* load_with_buffers(Arena& a, Message& message) {
    auto [pickle, buffers] =
        message.block ? borrow_buffers(a, message) : copy_buffers(message.data, message.label.size);
    nb::tuple arguments = nb::make_tuple(pickle);
    nb::dict keywords;
    keywords["buffers"] = buffers;
    return in_python([&] { return PyObject_Call(python.pickle_loads, arguments.ptr(), keywords.ptr()); });
}

}  // namespace

Status put_raw(const Destination& to, const void* data, size_t size) {
    return put_bytes(to, kRaw, data, size);
}

Status put_object(const Destination& to, PyObject* object) {
    if (object == Py_None) return put_bytes(to, kNone, "", 0);
    if (PyBool_Check(object)) return put_bytes(to, object == Py_True ? kTrue : kFalse, "", 0);
    if (PyLong_CheckExact(object)) {
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (!overflow) return put_bytes(to, kInt, &value, sizeof value);
    } else if (PyFloat_CheckExact(object)) {
        double value = PyFloat_AsDouble(object);
        return put_bytes(to, kFloat, &value, sizeof value);
    } else if (PyBytes_CheckExact(object)) {
        char* data;
        Py_ssize_t size;
        PyBytes_AsStringAndSize(object, &data, &size);
        return put_bytes(to, kBytes, data, static_cast<size_t>(size));
    } else if (PyUnicode_CheckExact(object)) {
        Py_ssize_t size;
        const char* data = PyUnicode_AsUTF8AndSize(object, &size);
        if (data) return put_bytes(to, kStr, data, static_cast<size_t>(size));
        PyErr_Clear();  // lone surrogates, which pickle can encode
    }
    return put_any(to, object);
}

static void check_size(const Message& message, size_t size) {
    if (message.label.size != size) throw nb::value_error("a message is damaged: a number of another size");
}

PyObject* to_object(Arena& a, Message& message) {
    OwnBlock block(a, message.block);
    const char* data = message.block ? block.data() : message.data;
    auto size = static_cast<Py_ssize_t>(message.label.size);
    PyObject* result = nullptr;
    switch (message.label.kind) {
        case kNone:
            return nb::none().release().ptr();
        case kTrue:
            return nb::bool_(true).release().ptr();
        case kFalse:
            return nb::bool_(false).release().ptr();
        case kInt: {
            long long value;
            check_size(message, sizeof value);
            memcpy(&value, data, sizeof value);
            result = PyLong_FromLongLong(value);
            break;
        }
        case kFloat: {
            double value;
            check_size(message, sizeof value);
            memcpy(&value, data, sizeof value);
            result = PyFloat_FromDouble(value);
            break;
        }
        case kStr:
            result = PyUnicode_FromStringAndSize(data, size);
            break;
        case kBytes:
            result = new_bytes(size);
            if (result) copy(PyBytes_AsString(result), data, message.label.size);
            break;
        case kPickleBuffers:
            block.pass_on();
            result = load_with_buffers(a, message);
            break;
        default: {
            nb::object pickle = nb::steal(PyBytes_FromStringAndSize(data, size));
            if (pickle.is_valid()) result = call(python.pickle_loads, pickle.ptr());
        }
    }
    if (!result) throw nb::python_error();
    return result;
}

Status put_frames(const Destination& to, PyObject* head, PyObject* buffers) {
    return put_with_buffers(to, kRaw, kFrames, head, buffers);
}

nb::tuple to_frames(Arena& a, Message& message) {
    if (message.label.kind == kFrames && message.block) {
        auto [head, buffers] = borrow_buffers(a, message);
        return nb::make_tuple(nb::bytes(head), buffers);
    }
    OwnBlock block(a, message.block);
    const char* data = message.block ? block.data() : message.data;
    if (message.label.kind != kFrames) return nb::make_tuple(nb::bytes(data, message.label.size), nb::list());
    auto [head, buffers] = copy_buffers(data, message.label.size);
    return nb::make_tuple(nb::bytes(head), buffers);
}

nb::tuple before_frame(nb::bytes head, size_t size) {
    size_t start = first_buffer(1, head.size());
    std::string bytes(start, 0);
    auto* table = reinterpret_cast<BufferTable*>(bytes.data());
    table->head_size = head.size();
    table->count = 1;
    table->buffers[0] = {start, size};
    memcpy(bytes.data() + head_start(1), head.c_str(), head.size());
    return nb::make_tuple(static_cast<uint32_t>(kFrames), nb::bytes(bytes.data(), bytes.size()));
}

nb::tuple to_parts(Arena& a, Message& message) {
    if (message.block == 0)
        return nb::make_tuple(message.label.kind, nb::bytes(message.data, message.label.size));
    return nb::make_tuple(message.label.kind, loan_of(a, message.block, message.label.size));
}

nb::object loan_of(Arena& a, Offset block, size_t size) {
    return nb::cast(new Loan{&a, block, a.self(), size}, nb::rv_policy::take_ownership);
}

Status put_parts(const Destination& to, uint32_t kind, const void* data, size_t size) {
    return put_bytes(to, kind, data, size);
}

Status put_loan(Arena& a, Channel& channel, uint32_t kind, nb::handle object) {
    auto& loan = nb::cast<Loan&>(object);
    if (!loan.block || loan.a != &a) throw nb::value_error("the memory was passed on already");
    Status status = channel.put_block(a, {kind, loan.size}, loan.block, 0);
    if (status == Status::Ok) loan.block = 0;
    if (status == Status::Busy) throw StillLocked();
    return status;
}

PyObject* to_bytes(Arena& a, Message& message) {
    if (message.label.kind == kRaw || message.label.kind == kPickle) {
        message.label.kind = kBytes;
        return to_object(a, message);
    }
    nb::object object = nb::steal(to_object(a, message));
    PyObject* pickle = call(python.pickle_dumps, object.ptr(), nb::int_(5).ptr());
    if (!pickle) throw nb::python_error();
    return pickle;
}

void bind_loan(nb::module_& m) {
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(loan_buffer)}, {0, nullptr}};
    nb::class_<Loan>(m, "Loan", nb::type_slots(slots),
                     "The memory of a large message: one that was received, or one to be written and put.")
        .def(
            "__init__",
            [](Loan* self, size_t size) {
                Arena& a = arena();
                new (self) Loan{&a, a.allocate(kDataStart + size), a.self(), size};
            },
            nb::arg("size"));
}

}  // namespace dragon::py
