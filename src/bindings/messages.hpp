// Converts Python objects to messages and back: plain types directly, all others with pickle, large buffers
// separately from the pickle.
#pragma once

#include "common.hpp"

namespace dragon::py {

enum MessageKind : uint32_t {
    kNone,
    kTrue,
    kFalse,
    kInt,
    kFloat,
    kStr,
    kBytes,
    kRaw,  // bytes that were sent as such, not as an object
    kPickle,
    kPickleBuffers,  // a pickle and the buffers it refers to
    kFrames,         // bytes and buffers that were sent as such
};

// The channel to which a message is put, the deadline for it, the ticket of a task, and where it is put.
struct Destination {
    ChannelHandle::Use channel;
    Nanoseconds deadline;
    uint64_t ticket = 0;
    Side side = Side::Back;
};

// Put an object, or bytes, into the channel. They throw the exceptions of Python's queues; a timeout is
// returned as the status.
Status put_object(const Destination& to, PyObject* object);
Status put_raw(const Destination& to, const void* data, size_t size);
// Put bytes and buffers without pickling, and convert such a message back: (bytes, [memory, ...]). The memory
// is on loan and writable.
Status put_frames(const Destination& to, PyObject* head, PyObject* buffers);
nb::tuple to_frames(Arena& a, Message& message);
// The kind of such a message, and the bytes that precede a single buffer of `size` bytes in it.
nb::tuple before_frame(nb::bytes head, size_t size);

// Returns a new reference to the object of a message. The message's block is freed, or lent to the object.
PyObject* to_object(Arena& a, Message& message);
// The same as bytes: raw bytes and pickles unchanged, other objects pickled.
PyObject* to_bytes(Arena& a, Message& message);

// Convert a message to its kind and its bytes, for another node, and put it from these.
nb::tuple to_parts(Arena& a, Message& message);
Status put_parts(const Destination& to, uint32_t kind, const void* data, size_t size);

// Returns memory on loan: the data of a large message in a block that this process owns.
nb::object loan_of(Arena& a, Offset block, size_t size);
// Puts a message that was written into a loan, whose memory passes to the channel. Does not wait.
Status put_loan(Arena& a, Channel& channel, uint32_t kind, nb::handle loan);

void bind_loan(nb::module_& m);

}  // namespace dragon::py
