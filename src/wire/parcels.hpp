// Moves messages between channels and payloads: several small ones together in a parcel, a large one in its
// block.
#pragma once

#include <string>

#include "../core/channel.hpp"
#include "frames.hpp"

namespace dragon::wire {

// What was taken out of a channel: small messages as a parcel, and a large one that follows them.
struct Taken {
    std::string parcel;
    uint32_t kind = 0;
    Payload large;
};

// Takes messages, up to about `most` bytes. Returns Ok if there were some or none, Busy if another process
// holds the channel's lock, Destroyed.
Status take_parcel(Arena& a, Channel& channel, size_t most, Taken& out);
// Puts the messages of a parcel from `done` on, and counts their bytes there. Returns Ok once all are put;
// otherwise why the next one was not. Throws OutOfMemory, and Invalid if the parcel is none.
Status put_parcel(Arena& a, Channel& channel, std::string_view parcel, size_t& done);
// Puts a message, by copying it unless it is in a block of the arena.
Status put_message(Arena& a, Channel& channel, uint32_t kind, const Payload& payload, uint64_t ticket = 0,
                   Side side = Side::Back);

}  // namespace dragon::wire
