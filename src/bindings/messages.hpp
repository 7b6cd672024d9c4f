// Python objects as messages: the plain types directly, everything else through pickle, large buffers beside
// it.
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

// Where a message goes, until when that is tried, and the ticket it has if it is a task.
struct Destination {
    ChannelHandle::Use channel;
    Nanoseconds deadline;
    uint64_t ticket = 0;
};

// Puts an object, or bytes, into the channel. Throws what Python's queues throw, but for a time-out.
Status put_object(const Destination& to, PyObject* object);
Status put_raw(const Destination& to, const void* data, size_t size);
// A head and buffers, with nothing pickled; and back: (bytes, [memory, ...]). The memory is lent, and may be
// written.
Status put_frames(const Destination& to, PyObject* head, PyObject* buffers);
nb::tuple to_frames(Arena& a, Message& message);
// What precedes a single buffer of that size in such a message, and the message's kind.
nb::tuple before_frame(nb::bytes head, size_t size);

// A new reference to the object that a message holds; the message's block is freed, or lent to the object.
PyObject* to_object(Arena& a, Message& message);
// The same as bytes: raw ones as they are, others pickled.
PyObject* to_bytes(Arena& a, Message& message);

// A message as it is, for another node: its kind and its bytes, and back.
nb::tuple to_parts(Arena& a, Message& message);
Status put_parts(const Destination& to, uint32_t kind, const void* data, size_t size);

// Messages on their way to another node, as many as there are up to about `most` bytes: those that are small
// as one parcel, and the kind and memory of a large one that follows them (or None).
nb::tuple take_parcel(ChannelHandle& h, size_t most);
// Puts the messages of a parcel; returns the bytes of those that were put.
size_t put_parcel(const Destination& to, const char* data, size_t size, Status& status);
// Puts a message that was written into a loan, whose memory passes on; without waiting.
Status put_loan(Arena& a, Channel& channel, uint32_t kind, nb::handle loan);

void bind_loan(nb::module_& m);

}  // namespace dragon::py
